// CASES R35: whatever byte of a file changes, and wherever it is cut, reading ends with an error that names the place.
#include <cstdlib>
#include <random>

#include "checkpoints/latest.h"
#include "framework/io/hdf5.h"
#include "tests/checkpoints/single.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Damage : public Single {
 protected:
  Damage() {
    save(path);
    whole = testing::read_bytes(path);
  }
  std::string verify(const std::string& bytes) {
    testing::write_bytes(path, bytes);
    return testing::message_of([&] { verify_tensors(io, path, [](double) {}); });
  }
  std::string load(const std::string& bytes) {
    testing::write_bytes(path, bytes);
    state.clear();
    return testing::message_of([&] { read_tensors(io, path, state.tensors(), "rms"); });
  }
  // Where a dataset's bytes begin in the file.
  size_t place_of(const std::string& dataset) {
    return io.run([&](io::IoContext& context) {
      return io::File::open(context, path, io::Access::read).open_dataset(dataset).file_offset_bytes();
    });
  }
  const std::string path = folder / file_name(40);
  std::string whole;
};

TEST_F(Damage, NoneInAWholeFile) {
  EXPECT_EQ(verify(whole), "");
  EXPECT_EQ(load(whole), "");
  EXPECT_EQ(state.wrong(), 0);
}

TEST_F(Damage, CutShort) {
  for (size_t size : {whole.size() / 2, size_t(96), size_t(1), size_t(0), whole.size() - 1}) {
    EXPECT_THAT(load(whole.substr(0, size)), HasSubstr(path)) << size;
    EXPECT_NE(testing::message_of([&] { read_contents(io, path); }), "") << size;
  }
}

// The second row's tile of each kind of tensor: named, whether everything is verified or only loaded.
TEST_F(Damage, OneBitOfATensor) {
  for (const char* tensor : {"parameters/embedding.weight", "moment1/tall", "moment2/one"}) {
    std::string bytes = whole;
    bytes[place_of(tensor)] ^= 16;
    EXPECT_THAT(verify(bytes), HasSubstr(std::string(tensor) + ": rows 0 to")) << tensor;
    EXPECT_THAT(load(bytes), HasSubstr(tensor)) << tensor;
    testing::write_bytes(path, whole);
  }
}

TEST_F(Damage, OneBitElsewhere) {
  for (const char* dataset : {"checksums/parameters/tall", "run/config", "run/samples", "format_version"}) {
    std::string bytes = whole;
    bytes[place_of(dataset)] ^= 1;
    EXPECT_THAT(load(bytes), HasSubstr("damaged")) << dataset;
    EXPECT_THAT(testing::message_of([&] { read_contents(io, path); }), HasSubstr("damaged")) << dataset;
    testing::write_bytes(path, whole);
  }
}

// Any byte of the file at all.
TEST_F(Damage, AnyBit) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    const size_t at = random() % whole.size();
    std::string bytes = whole;
    bytes[at] = char(bytes[at] ^ (1 << random() % 8));
    EXPECT_NE(verify(bytes), "") << "byte " << at << " of " << whole.size();
  }
}

TEST_F(Damage, LatestFallsBack) {
  const std::string newer = folder / file_name(50);
  save(newer);
  testing::write_bytes(folder / "step-00000060.h5.writing", "half");
  EXPECT_EQ(find_latest(*world, io, folder.path()), newer);
  std::string bytes = testing::read_bytes(newer);
  bytes[place_of("parameters/tall")] ^= 1;  // the same place in both files
  testing::write_bytes(newer, bytes);
  EXPECT_EQ(find_latest(*world, io, folder.path()), path);
  testing::write_bytes(newer, "");
  EXPECT_EQ(find_latest(*world, io, folder.path()), path);
  testing::write_bytes(path, "");
  EXPECT_THAT(testing::message_of([&] { find_latest(*world, io, folder.path()); }),
              HasSubstr("none of its 2 checkpoints"));
}

TEST_F(Damage, LeftoversOldAndLaterFiles) {
  for (int64_t step : {10, 20, 30, 50}) testing::write_bytes(folder / file_name(step), "");
  testing::write_bytes(folder / "step-00000060.h5.writing", "half");
  testing::write_bytes(folder / "notes.txt", "mine");
  remove_leftovers(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000060.h5.writing"));
  EXPECT_TRUE(std::filesystem::exists(folder / "notes.txt"));
  remove_old(folder.path(), 40, {.keep = 2});  // 30 and 40 stay; 50 is not this run's
  EXPECT_THAT(complete_files(folder.path()), ElementsAre(folder / file_name(30), path, folder / file_name(50)));
  set_aside_after(folder.path(), 30);
  EXPECT_THAT(complete_files(folder.path()), ElementsAre(folder / file_name(30)));
  EXPECT_EQ(testing::read_bytes(path + ".set-aside"), whole);
  remove_old(folder.path(), 30, {.keep = 1});
  EXPECT_THAT(complete_files(folder.path()), ElementsAre(folder / file_name(30)));
  EXPECT_THAT(complete_files(folder / "absent"), ElementsAre());
}

TEST_F(Damage, OrdinaryHdf5ToolsReadIt) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed";
  const std::string out = folder / "dump.txt";
  ASSERT_EQ(std::system(fmt::format("h5dump -m %.9g -d /moment1/one {} > {} 2>&1", path, out).c_str()), 0);
  EXPECT_THAT(testing::read_bytes(out), HasSubstr("(0): 1.00024414"));  // 1 + 2^-12
}

}  // namespace
}  // namespace keel::checkpoints
