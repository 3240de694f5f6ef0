// Whatever fails on one rank ends on all of them with the same sentence, and leaves earlier checkpoints alone.
#include <cmath>
#include <optional>

#include "checkpoints/latest.h"
#include "tests/checkpoints/saved_run.h"
#include "tests/checkpoints/shared_folder.h"
#include "tests/support/disk.h"

namespace keel::checkpoints {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class Failures : public SharedFolder {
 protected:
  Failures() : state(world, {.tensor = 1, .data = world.size()}) {
    state.fill();
    save(state, before);
    bytes_before = testing::read_bytes(before);
  }
  // Nothing but the earlier file is left, and it is what it was; and the next save works.
  void expect_only_the_earlier_file() {
    world.barrier();
    EXPECT_THAT(names(), UnorderedElementsAre(file_name(1)));
    EXPECT_TRUE(testing::read_bytes(before) == bytes_before);
    world.barrier();
    state.fill();
    save(state, after);
    state.clear();
    read_tensors(io, after, state.tensors(), "rms");
    EXPECT_EQ(state.wrong(), 0);
    world.barrier();  // nobody removes a file that another rank still reads
  }

  State state;
  const std::string before = folder + "/" + file_name(1), after = folder + "/" + file_name(2);
  const int last = world.size() - 1;
  std::string bytes_before;
};

// CASES R25: one rank alone has one value that is not finite.
TEST_F(Failures, NotFinite) {
  for (float bad : {NAN, -INFINITY}) {
    state.fill();
    // The first element of what the last rank updates: of a weight, and of a second moment.
    const nn::ArenaRange& span = state.optimizer->spans().front();
    float* weight = state.parameters.arenas()[size_t(span.arena)].master.as<float>() + span.begin;
    for (auto [value, group] :
         {std::pair(weight, "parameters/"), {state.optimizer->moment2(0).as<float>(), "moment2/"}}) {
      const float good = *value;
      if (world.rank() == last) *value = bad;
      const Error error = error_of([&] { save(state, after); });
      *value = good;
      EXPECT_EQ(error.kind(), ErrorKind::unstable) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(group));
      EXPECT_THAT(error.what(), HasSubstr("not finite"));
    }
  }
  expect_only_the_earlier_file();
}

TEST_F(Failures, OneRankCannotSeeTheDirectory) {
  const std::string seen = world.rank() == last && last > 0 ? folder + "/elsewhere/x.h5" : after;
  const Error error = error_of([&] { save(state, seen); });
  if (last > 0) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}", last)));
    EXPECT_THAT(error.what(), HasSubstr("elsewhere"));
    expect_only_the_earlier_file();
  }
}

// CASES R36: the file of rank 0 is hidden from another one, or is another file.
TEST_F(Failures, OneRankSeesNoFileOrAnother) {
  confirm_on_all_ranks(world, before);
  save(state, after, 8);
  if (last == 0) return;
  Error error = error_of([&] { confirm_on_all_ranks(world, world.rank() == last ? before + "x" : before); });
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}: {}x", last, before)));
  error = error_of([&] { confirm_on_all_ranks(world, world.rank() == last ? after : before); });
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}", last)));
}

TEST_F(Failures, NewestIsTheSameOnAllRanks) {
  EXPECT_EQ(find_latest(world, io, folder + "/absent"), std::nullopt);
  EXPECT_EQ(find_latest(world, io, folder), before);
  save(state, after);
  EXPECT_EQ(find_latest(world, io, folder), after);
  // A weight with one bit changed, far behind everything that is read first: the ranks divide the reading.
  if (world.rank() == 0) {
    std::string bytes = testing::read_bytes(after);
    const float value = expected_value(TensorKind::weight, "tall", 300);
    const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&value), sizeof value));
    ASSERT_NE(at, std::string::npos);
    bytes[at] ^= 1;
    testing::write_bytes(after, bytes);
  }
  world.barrier();
  EXPECT_EQ(find_latest(world, io, folder), before);
  if (world.rank() == 0) testing::write_bytes(before, bytes_before.substr(0, 96));
  world.barrier();
  const Error error = error_of([&] { find_latest(world, io, folder); });
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("none of its 2 checkpoints is whole"));
}

// CASES R35: the disk is too small for the file; the ranks learn it before they write.
TEST_F(Failures, FullDisk) {
  const std::string small = folder + "/small";
  std::unique_ptr<testing::SmallDisk> disk;
  if (world.rank() == 0) disk = std::make_unique<testing::SmallDisk>(small, "256k");
  const bool mounted = comm::all_reduce_value(world, int64_t(disk && disk->ok()), comm::Reduction::max) == 1;
  if (!mounted) GTEST_SKIP() << "this process may not mount; FileSizeLimit limits the file size instead";
  const Error error = error_of([&] { save(state, small + "/" + file_name(1)); });
  EXPECT_THAT(error.what(), HasSubstr("are needed"));
  EXPECT_THAT(error.what(), HasSubstr("free some space"));
  EXPECT_TRUE(std::filesystem::is_empty(small));
  world.barrier();
  disk.reset();
  if (world.rank() == 0) std::filesystem::remove(small);
  expect_only_the_earlier_file();
}

// Files must not grow as large as the checkpoint.
TEST_F(Failures, FileSizeLimit) {
  {
    const testing::FileSizeLimit limit(6000);
    const Error error = error_of([&] { save(state, after); });
    EXPECT_THAT(error.what(), HasSubstr("step-00000002.h5.writing"));
    EXPECT_THAT(error.what(), HasSubstr("ulimit -f"));
  }
  expect_only_the_earlier_file();
}

// CASES R35: the last rank's writes fail inside MPI-IO, halfway through the tiles, while those of all others succeed.
TEST_F(Failures, WritesOfOneRank) {
  if (last == 0) return;             // FileSizeLimit is the same for one rank
  if (!io::parallel_hdf5()) return;  // only rank 0 writes
  for (int64_t parts : {1, 3}) {
    std::optional<testing::FileSizeLimit> limit;
    if (world.rank() == last) limit.emplace(parts == 1 ? bytes_before.size() / 2 : 10000);
    const Error error = error_of([&] {
      write_checkpoint(world, io, state.tensors(), some_run_state(),
                       {.path = after, .io_comm = MPI_COMM_WORLD, .parts = parts, .tile_elements = 16});
    });
    limit.reset();
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {}: ", last)));
    EXPECT_THAT(error.what(), HasSubstr(".writing: "));
    EXPECT_THAT(error.what(), HasSubstr("a full disk"));
    expect_only_the_earlier_file();
    if (world.rank() == 0) std::filesystem::remove(after);
    world.barrier();
  }
}

// CASES R44: a read-only disk can be loaded from, and saving there is an input error on all ranks.
TEST_F(Failures, ReadOnlyDirectory) {
  std::unique_ptr<testing::ReadOnly> lock;
  if (world.rank() == 0) lock = std::make_unique<testing::ReadOnly>(folder);
  const bool locked = comm::all_reduce_value(world, int64_t(lock && lock->ok()), comm::Reduction::max) == 1;
  if (!locked) GTEST_SKIP() << "this process cannot make a directory read-only";
  EXPECT_EQ(find_latest(world, io, folder), before);
  state.clear();
  read_tensors(io, before, state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
  const Error error = error_of([&] { save(state, after); });
  EXPECT_EQ(error.kind(), ErrorKind::input);
  EXPECT_THAT(error.what(), HasSubstr("step-00000002.h5.writing"));
  world.barrier();
}

// A run of all ranks.
class FailuresInARun : public SavedRun {
 protected:
  FailuresInARun() {
    world = comm::make_mpi_communicator(MPI_COMM_WORLD);
    saves = comm::make_mpi_communicator(MPI_COMM_WORLD);
    io_comm = MPI_COMM_WORLD;
    options.directory = comm::broadcast_text(*world, options.directory);
  }
  ~FailuresInARun() override { world->barrier(); }
};

// Every rank hears of it as of any other failure, and goes on.
TEST_F(FailuresInARun, TheCopyOfOneRank) {
  std::vector<std::string> kinds;
  options.note = [&](const std::string& kind, const io::Json& fields) {
    kinds.push_back(kind);
    if (kind != "save_failed") return;
    EXPECT_EQ(fields["reason"], "no memory here");
  };
  int copies = 0;
  options.before_copy = [&] {
    if (++copies == 1 && world->rank() == world->size() - 1) throw Error(ErrorKind::internal, "no memory here");
  };
  run();
  EXPECT_THAT(kinds, ::testing::ElementsAre("save_failed", "saved", "saved"));
  EXPECT_THAT(names(), ::testing::ElementsAre(file_name(10), file_name(12)));
}

}  // namespace
}  // namespace keel::checkpoints
