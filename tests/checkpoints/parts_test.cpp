// Checkpoints of several files: what HDF5's own readers see, parts that are missing, damaged or another's, retention.
#include "checkpoints/parts.h"

#include <sys/file.h>

#include <cstdlib>

#include "checkpoints/latest.h"
#include "framework/io/files.h"
#include "tests/checkpoints/single.h"

namespace keel::checkpoints {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class Parts : public Single {
 protected:
  Parts() { save_parts(path); }
  void save_parts(const std::string& to, int64_t parts = 3) {
    bytes = write_checkpoint(*world, io, state.tensors(), some_run_state(),
                             {.path = to, .parts = parts, .tile_elements = 16});
  }
  std::string verify() {
    return testing::message_of([&] { verify_tensors(io, path, [](double) {}); });
  }
  std::string load() {
    state.clear();
    return testing::message_of([&] { read_tensors(io, path, state.tensors(), "rms"); });
  }
  std::string part(int64_t number, int64_t step = 40) const { return folder / part_name(file_name(step), number); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  const std::string path = folder / file_name(40);
  int64_t bytes = 0;
};

TEST_F(Parts, HoldTheTensorsAndTheFileLinksThem) {
  EXPECT_THAT(names(), ElementsAre("step-00000040.h5", "step-00000040.part-0000.h5", "step-00000040.part-0001.h5",
                                   "step-00000040.part-0002.h5"));
  EXPECT_EQ(load(), "");
  EXPECT_EQ(state.wrong(), 0);
  EXPECT_EQ(verify(), "");
  const Contents contents = read_contents(io, path);
  EXPECT_EQ(contents.parts, 3);
  EXPECT_EQ(contents.bytes, bytes);
  EXPECT_EQ(contents.parameters.size(), state.parameters.all().size());
  EXPECT_EQ(contents.state.progress.step, 40);
  // Parts are alike in size, and the linking file has no tensor.
  uint64_t elements[3] = {}, largest = 0;
  const auto files = spread(tensors_of(state.tensors()), 3);
  for (size_t i = 0; i < 3; ++i)
    for (const LogicalTensor& tensor : files[i]) {
      elements[i] += uint64_t(tensor.shape().elements());
      largest = std::max(largest, uint64_t(tensor.shape().elements()));
    }
  EXPECT_LE(*std::max_element(elements, elements + 3), *std::min_element(elements, elements + 3) + largest);
}

TEST_F(Parts, MoreThanThereAreTensors) {
  const std::string other = folder / file_name(50);
  save_parts(other, 4000);
  state.clear();
  read_tensors(io, other, state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
  EXPECT_EQ(read_contents(io, other).parts, int64_t(tensors_of(state.tensors()).size()));
}

TEST_F(Parts, OrdinaryHdf5ToolsReadThem) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed";
  const std::string out = folder / "dump.txt";
  const std::string elsewhere = folder / "moved";
  fs::create_directory(elsewhere);
  for (const std::string& file : parts_of(path)) fs::rename(file, elsewhere + "/" + fs::path(file).filename().string());
  fs::rename(path, elsewhere + "/x.h5");  // links are relative, and the linking file may get another name
  ASSERT_EQ(std::system(fmt::format("h5dump -m %.9g -d /moment1/one {}/x.h5 > {} 2>&1", elsewhere, out).c_str()), 0);
  EXPECT_THAT(testing::read_bytes(out), HasSubstr("(0): 1.00024414"));  // 1 + 2^-12
  EXPECT_EQ(testing::message_of([&] { verify_tensors(io, elsewhere + "/x.h5", [](double) {}); }), "");
}

// Readers take no locks of parts either: read-only disks have none.
TEST_F(Parts, AreReadWithoutLocks) {
  std::vector<io::Descriptor> locked;
  for (const std::string& file : {path, part(0), part(1), part(2)}) {
    locked.emplace_back(file, O_RDWR, "cannot open");
    ASSERT_EQ(flock(locked.back().get(), LOCK_EX), 0);
  }
  EXPECT_EQ(load(), "");
}

TEST_F(Parts, MissingOnes) {
  for (int64_t missing : {0, 2}) {
    const std::string bytes = testing::read_bytes(part(missing));
    fs::remove(part(missing));
    for (const std::string& message : {load(), verify()}) {
      EXPECT_THAT(message, HasSubstr("is in 3 parts, and one is missing or damaged"));
      EXPECT_THAT(message, HasSubstr(part(missing)));
    }
    EXPECT_THAT(testing::message_of([&] { read_contents(io, path); }), HasSubstr(part(missing)));
    testing::write_bytes(part(missing), bytes);
  }
  EXPECT_EQ(verify(), "");
}

// Any byte of any file of it.
TEST_F(Parts, DamagedOnes) {
  for (const std::string& file : {path, part(0), part(1), part(2)}) {
    const std::string whole = testing::read_bytes(file);
    for (size_t i = 0; i < 12; ++i) {
      const size_t at = size_t(uniform(3, i) * double(whole.size()));
      std::string bytes = whole;
      bytes[at] = char(bytes[at] ^ 4);
      testing::write_bytes(file, bytes);
      EXPECT_NE(verify(), "") << file << " at " << at;
    }
    testing::write_bytes(file, whole.substr(0, whole.size() - 1));
    EXPECT_THAT(load(), HasSubstr(file));
    testing::write_bytes(file, whole);
  }
  EXPECT_EQ(verify(), "");
}

// A tile of a part: named by tensor and rows.
TEST_F(Parts, DamagedTensor) {
  const float value = expected_value(TensorKind::moment2, "tall", 300);
  const std::string pattern(reinterpret_cast<const char*>(&value), sizeof value);
  for (const std::string& file : parts_of(path)) {
    std::string bytes = testing::read_bytes(file);
    const size_t at = bytes.find(pattern);
    if (at == bytes.npos) continue;
    bytes[at] ^= 1;
    testing::write_bytes(file, bytes);
  }
  EXPECT_THAT(load(), HasSubstr("moment2/tall: rows 100 to 104 are damaged"));
}

// Parts of the same name and shape from another save are whole files, and not these.
TEST_F(Parts, OfAnotherCheckpoint) {
  fs::create_directory(folder / "other");
  state.optimizer->moment1(0).as<float>()[0] += 1;
  save_parts(folder / "other/step-00000040.h5");
  for (int64_t i = 0; i < 3; ++i) {
    const std::string mine = testing::read_bytes(part(i));
    const std::string theirs = testing::read_bytes(folder / "other/" + part_name(file_name(40), i));
    if (mine == theirs) continue;
    testing::write_bytes(part(i), theirs);
    EXPECT_THAT(load(), HasSubstr(part(i) + " is not the part that it was saved with"));
    testing::write_bytes(part(i), mine);
  }
}

TEST_F(Parts, LatestFallsBackFromAMissingOne) {
  const std::string newer = folder / file_name(50);
  save_parts(newer, 2);
  EXPECT_EQ(find_latest(*world, io, folder.path()), newer);
  fs::remove(part(1, 50));
  EXPECT_EQ(find_latest(*world, io, folder.path()), path);
}

// What a save killed between the renames leaves behind: parts that nobody links.
TEST_F(Parts, LeftoversOldAndLaterOnes) {
  for (int64_t step : {10, 20, 50}) save_parts(folder / file_name(step), 2);
  testing::write_bytes(part(0, 60), "renamed, but not linked yet");
  testing::write_bytes(part(1, 60) + ".writing", "half");
  testing::write_bytes(part(1, 60) + ".writing.locktest.0", "");
  remove_leftovers(folder.path());
  EXPECT_FALSE(fs::exists(part(0, 60)) || fs::exists(part(1, 60) + ".writing"));
  EXPECT_TRUE(fs::exists(part(1, 50)) && fs::exists(part(2, 40)));
  remove_old(folder.path(), 40, {.keep = 2});
  EXPECT_THAT(complete_files(folder.path()), ElementsAre(folder / file_name(20), path, folder / file_name(50)));
  EXPECT_THAT(parts_of(folder / file_name(10)), IsEmpty());
  EXPECT_EQ(parts_of(folder / file_name(20)).size(), 2u);
  set_aside_after(folder.path(), 20);
  EXPECT_THAT(names(), ElementsAre("step-00000020.h5", "step-00000020.part-0000.h5", "step-00000020.part-0001.h5",
                                   "step-00000040.h5.set-aside", "step-00000040.part-0000.h5.set-aside",
                                   "step-00000040.part-0001.h5.set-aside", "step-00000040.part-0002.h5.set-aside",
                                   "step-00000050.h5.set-aside", "step-00000050.part-0000.h5.set-aside",
                                   "step-00000050.part-0001.h5.set-aside"));
}

// The linking file comes last: where it cannot be put in place, nothing of this save is left.
TEST_F(Parts, FailureAtTheEnd) {
  fs::create_directory(folder / file_name(50));  // no file can be renamed to a directory
  EXPECT_NE(testing::message_of([&] { save_parts(folder / file_name(50)); }), "");
  EXPECT_THAT(parts_of(folder / file_name(50)), IsEmpty());
  for (const std::string& name : names()) EXPECT_THAT(name, Not(HasSubstr(".writing")));
  EXPECT_EQ(verify(), "");
}

// And where a part cannot be put in place, it does not come at all.
TEST_F(Parts, FailureOfAPart) {
  fs::create_directory(part(1, 50));
  EXPECT_NE(testing::message_of([&] { save_parts(folder / file_name(50)); }), "");
  EXPECT_THAT(parts_of(folder / file_name(50)), ElementsAre(part(1, 50)));
  EXPECT_THAT(complete_files(folder.path()), ElementsAre(path));
}

}  // namespace
}  // namespace keel::checkpoints
