// Files that several ranks write together. Runs at 1, 3 and 4 ranks, and at more where nobody has much to write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "framework/io/files.h"
#include "framework/io/hdf5.h"
#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using Dims = std::vector<uint64_t>;
using ::testing::HasSubstr;

class SharedFile : public ::testing::Test {
 protected:
  SharedFile() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    char path[4096] = "";
    if (rank_ == 0) scratch_ = std::make_unique<TemporaryFolder>(), std::strncpy(path, scratch_->path().c_str(), 4000);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    directory_ = path;
  }
  ~SharedFile() { MPI_Barrier(MPI_COMM_WORLD); }
  template <class Job>
  auto run(Job job) {
    return io_.run(std::move(job));
  }
  static FileOptions together() { return {.communicator = MPI_COMM_WORLD}; }

  int rank_ = 0, ranks_ = 1;
  std::string directory_;
  std::unique_ptr<TemporaryFolder> scratch_;
  IoThread io_;
};

// CASES R40: two rows, one per rank while they last; the other ranks take part with nothing.
TEST_F(SharedFile, TwoRowsFromAnyNumberOfRanks) {
  const std::string path = directory_ + "/rows.h5";
  run([&](IoContext& c) {
    File file = File::create(c, path, together());
    Dataset dataset = file.create_dataset<float>("x", Dims{2, 3}, {.fill = false});
    for (uint64_t round = 0; round < uint64_t(2 + ranks_ - 1) / ranks_; ++round) {  // the same on every rank
      const uint64_t row = round * ranks_ + rank_;
      const bool mine = row < 2;
      std::vector<float> values;
      if (mine) values = {row * 10.f, row * 10.f + 1, row * 10.f + 2};
      dataset.write<float>(values, mine ? Slab{{row, 0}, {1, 3}} : Slab{{0, 0}, {0, 0}});
    }
    dataset.close(), file.close();
  });
  MPI_Barrier(MPI_COMM_WORLD);
  auto values = run([&](IoContext& c) {  // each rank on its own, as any reader would
    File file = File::open(c, path, Access::read);
    return file.open_dataset("x").read_all<float>();
  });
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 10, 11, 12}));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(SharedFile, PartsReadWithAndWithoutElements) {
  const std::string path = directory_ + "/read.h5";
  const uint64_t n = 1000;
  run([&](IoContext& c) {
    File file = File::create(c, path, together());
    Dataset dataset = file.create_dataset<int64_t>("x", Dims{n}, {.fill = false});
    std::vector<int64_t> all(rank_ == 0 ? n : 0);
    std::iota(all.begin(), all.end(), 0);
    dataset.write<int64_t>(all, rank_ == 0 ? Slab{{0}, {n}} : Slab{{0}, {0}});
    dataset.close(), file.close();
    File again = File::open(c, path, Access::read, together());
    Dataset stored = again.open_dataset("x");
    const uint64_t first = n * rank_ / ranks_, last = rank_ == ranks_ - 1 ? first : n * (rank_ + 1) / ranks_;
    std::vector<int64_t> part(last - first);  // nothing on the last rank
    stored.read<int64_t>(part, {{first}, {part.size()}});
    for (uint64_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], int64_t(first + i));
  });
}

// MPI-IO takes less than 2 GiB at once; here 28 bytes.
TEST_F(SharedFile, LargeTransfersGoInPieces) {
  const std::string path = directory_ + "/large.h5";
  run([&](IoContext& c) {
    FileOptions options = together();
    options.largest_transfer_bytes = 28;
    File file = File::create(c, path, options);
    Dataset dataset = file.create_dataset<float>("x", Dims{uint64_t(ranks_), 3, 4}, {.fill = false});
    std::vector<float> values(12), back(12);
    std::iota(values.begin(), values.end(), 100.f * rank_);
    const Slab mine{{uint64_t(rank_), 0, 0}, {1, 3, 4}};
    dataset.write<float>(values, mine);
    dataset.read<float>(back, mine);
    EXPECT_EQ(back, values);
    dataset.close(), file.close();
    options.largest_transfer_bytes = 2;  // less than one element: no piece is small enough
    File small = File::open(c, path, Access::read_write, options);
    EXPECT_THAT(message_of([&] { small.open_dataset("x").write<float>(values, mine); }), HasSubstr("no pieces"));
    small.close();
  });
  MPI_Barrier(MPI_COMM_WORLD);
  const auto all =
      run([&](IoContext& c) { return File::open(c, path, Access::read).open_dataset("x").read_all<float>(); });
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], float(100 * (i / 12) + i % 12));
}

TEST_F(SharedFile, WholeValuesAreRankZeros) {
  const std::string path = directory_ + "/values.h5";
  run([&](IoContext& c) {
    File file = File::create(c, path, together());
    file.write_scalar<int64_t>("state/step", 100 + rank_);  // what the others hold must not matter
    file.write_text("config", rank_ == 0 ? "seed: 1\n" : "seed: 2\n");
    file.write_texts("names", std::vector<std::string>{"q", "kay"});
    file.close();
  });
  MPI_Barrier(MPI_COMM_WORLD);
  run([&](IoContext& c) {
    File file = File::open(c, path, Access::read);
    EXPECT_EQ(file.read_scalar<int64_t>("state/step"), 100);
    EXPECT_EQ(file.read_text("config"), "seed: 1\n");
    EXPECT_EQ(file.read_texts("names")[1], "kay");
  });
}

TEST_F(SharedFile, UserBlockAndHints) {
  const std::string path = directory_ + "/block.h5";
  run([&](IoContext& c) {
    FileOptions options = together();
    options.user_block_bytes = 4096;
    options.mpi_hints = {{"cb_buffer_size", "1048576"}, {"romio_cb_write", "enable"}};
    File file = File::create(c, path, options);
    Dataset dataset = file.create_dataset<float>("x", Dims{3}, {.fill = false});
    std::vector<float> values = {1, 2, 3};
    if (rank_ == 0) dataset.write<float>(values);
    dataset.close(), file.close();
  });
  MPI_Barrier(MPI_COMM_WORLD);
  EXPECT_EQ(read_bytes(path).substr(0, 4096), std::string(4096, '\0'));
}

// CASES R35: MPI-IO may hang on a full disk, so the space is taken first; all ranks leave with the message, or write.
TEST_F(SharedFile, AFullDiskIsFoundBeforeAnyRankWrites) {
  int ok = 0;
  std::unique_ptr<SmallDisk> disk;
  if (rank_ == 0) disk = std::make_unique<SmallDisk>(directory_ + "/disk", "4m"), ok = disk->ok();
  MPI_Bcast(&ok, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (!ok) GTEST_SKIP() << "cannot mount a small file system here";
  const std::string path = directory_ + "/disk/a.h5";
  for (uint64_t elements : {1 << 19, 1 << 21}) {  // 2 MiB fit, 8 MiB do not
    std::string message;
    if (rank_ == 0) message = message_of([&] { reserve_disk(path, elements * 4 + (64 << 10)); });
    int fits = message.empty();
    MPI_Bcast(&fits, 1, MPI_INT, 0, MPI_COMM_WORLD);
    EXPECT_EQ(bool(fits), elements == 1 << 19) << message;
    if (!fits) break;
    run([&](IoContext& c) {
      File file = File::create(c, path, together());
      Dataset dataset = file.create_dataset<float>("x", Dims{elements}, {.fill = false});
      if (rank_ == 0) reserve_disk(path, dataset.file_offset_bytes() + elements * 4);
      const uint64_t first = elements * rank_ / ranks_, last = elements * (rank_ + 1) / ranks_;
      dataset.write<float>(std::vector<float>(last - first, 1), {{first}, {last - first}});
      dataset.close(), file.close();
    });
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_GE(std::filesystem::file_size(path), elements * 4);
    EXPECT_LT(std::filesystem::file_size(path), elements * 4 + (64 << 10));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// CASES R40: nobody can open it, so everybody says so and leaves.
TEST_F(SharedFile, FailingToOpenFailsOnEveryRank) {
  for (const std::string name : {"/absent.h5", "/no/such/directory.h5"}) {
    std::string message =
        message_of([&] { run([&](IoContext& c) { File::open(c, directory_ + name, Access::read, together()); }); });
    EXPECT_THAT(message, HasSubstr(name + ": ")) << rank_;
    EXPECT_THAT(message, HasSubstr("no such file or directory"));
  }
  std::string message = message_of(
      [&] { run([&](IoContext& c) { File::create(c, directory_ + "/no/such/directory.h5", together()); }); });
  EXPECT_THAT(message, HasSubstr("directory.h5: ")) << rank_;
}

TEST_F(SharedFile, DamagedFilesFailOnEveryRank) {
  const std::string path = directory_ + "/cut.h5";
  run([&](IoContext& c) {
    File file = File::create(c, path, together());
    file.write_scalar<int64_t>("step", 1);
    file.close();
  });
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank_ == 0) write_bytes(path, read_bytes(path).substr(0, 96));
  MPI_Barrier(MPI_COMM_WORLD);
  std::string message = message_of([&] { run([&](IoContext& c) { File::open(c, path, Access::read, together()); }); });
  EXPECT_THAT(message, HasSubstr("the file is cut short")) << rank_;
}

}  // namespace
}  // namespace keel::io
