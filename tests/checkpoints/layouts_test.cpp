// Any layout loads any file: every pair of layouts that fit the ranks at hand, all three tensors bit by bit.
#include "checkpoints/tile_exchange.h"
#include "tests/checkpoints/shared_folder.h"

namespace keel::checkpoints {
namespace {

std::vector<Layout> layouts_for(int ranks) {
  std::vector<Layout> fitting;
  for (auto [tensor, data] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 3}, {1, 4}})
    for (bool zero : {true, false})
      if (tensor * data <= ranks && (zero || data > 1)) fitting.push_back({tensor, data, zero});
  return fitting;
}

using Layouts = SharedFolder;

TEST_F(Layouts, AnyLayoutLoadsAnyFile) {
  const std::vector<Layout> layouts = layouts_for(world.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    Ranks ranks(layouts[i].ranks());
    if (!ranks.in()) continue;
    State state(*ranks.world, layouts[i]);
    state.fill();
    write_checkpoint(*ranks.world, io, state.tensors(), some_run_state(),
                     {.path = folder + "/" + file_name(int64_t(i)),
                      .io_comm = ranks.io_comm,
                      .parts = int64_t(1 + i % 2),
                      .one_writer = i % 3 == 0 || !io::parallel_hdf5(),
                      .tile_elements = 16});
  }
  world.barrier();
  for (const Layout& layout : layouts) {
    Ranks ranks(layout.ranks());
    if (!ranks.in()) continue;
    State state(*ranks.world, layout);
    for (size_t i = 0; i < layouts.size(); ++i) {
      state.clear();
      read_tensors(io, folder + "/" + file_name(int64_t(i)), state.tensors(), "rms");
      EXPECT_EQ(state.wrong(), 0) << "saved at " << layouts[i].name() << ", loaded at " << layout.name();
    }
  }
}

// What a serial HDF5 makes of several ranks: rank 0 alone opens the file.
TEST_F(Layouts, OneWriterWritesWhatAllHold) {
  State state(world, {.tensor = 1, .data = world.size()});
  state.fill();
  const std::string path = folder + "/" + file_name(1);
  // Without a communicator for it nobody else could.
  write_checkpoint(world, io, state.tensors(), some_run_state(),
                   {.path = path, .parts = 2, .one_writer = true, .tile_elements = 16});
  state.clear();
  read_tensors(io, path, state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
}

// 4 -> 2 -> 1 -> 4 ranks (CASES R38): what one layout loaded, the next saves.
TEST_F(Layouts, GoRoundThroughSeveralLayouts) {
  const std::vector<Layout> layouts = layouts_for(world.size());
  std::string previous;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Layout& layout = layouts[layouts.size() - 1 - i];
    const std::string path = folder + "/" + file_name(int64_t(i));
    Ranks ranks(layout.ranks());
    if (ranks.in()) {
      State state(*ranks.world, layout);
      state.clear();
      if (previous.empty()) state.fill();
      if (!previous.empty()) read_tensors(io, previous, state.tensors(), "rms");
      write_checkpoint(*ranks.world, io, state.tensors(), some_run_state(),
                       {.path = path,
                        .io_comm = ranks.io_comm,
                        .parts = int64_t(1 + i % 2 * 2),
                        .tile_elements = int64_t(5 + 3 * i)});
      if (!previous.empty()) {
        EXPECT_EQ(state.wrong(), 0) << layout.name();
      }
    }
    previous = path;
    world.barrier();
  }
}

// Weights alone, from a run whose data ranks each have only some of them up to date; and from a model without
// optimizer.
TEST_F(Layouts, WeightsOnly) {
  State state(world, {.tensor = 1, .data = world.size()});
  state.fill();
  const std::string from_run = folder + "/" + file_name(1), from_model = folder + "/" + file_name(2);
  LocalTensors tensors = state.tensors();
  tensors.weights_only = true;
  const WriteOptions options{.path = from_run, .io_comm = MPI_COMM_WORLD, .tile_elements = 16};
  const int64_t small = write_checkpoint(world, io, tensors, some_run_state(), options);
  EXPECT_LT(small, save(state, folder + "/" + file_name(3)));

  const LocalTensors model{.parameters = state.parameters, .data_replica = world.rank() != 0};
  read_tensors(io, from_run, model, "rms");
  EXPECT_EQ(state.wrong(), 0);
  write_checkpoint(world, io, model, some_run_state(), {.path = from_model, .io_comm = MPI_COMM_WORLD});
  for (const std::string& path : {from_run, from_model}) {
    EXPECT_TRUE(read_contents(io, path).state.weights_only);
    const Error error = error_of([&] { read_tensors(io, path, state.tensors(), "rms"); });
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("holds weights only"));
  }
}

// On a GPU every save is of a copy: of weights while a run goes on, of everything where it is stopped.
TEST_F(Layouts, ASnapshotOfWeightsThenOfEverything) {
  State state(world, {.tensor = 1, .data = world.size()});
  state.fill();
  Snapshot snapshot;
  LocalTensors tensors = state.tensors();
  snapshot.take(tensors);
  const int64_t room_bytes = snapshot.memory_bytes();  // of the largest, taken before the first step
  for (bool weights_only : {true, false, true}) {
    tensors.weights_only = weights_only;
    tensors.snapshot = nullptr;
    snapshot.take(tensors);
    EXPECT_EQ(snapshot.memory_bytes(), room_bytes);
    tensors.snapshot = &snapshot;
    const std::string path = folder + "/" + file_name(weights_only ? 1 : 2);
    write_checkpoint(world, io, tensors, some_run_state(), {.path = path, .io_comm = MPI_COMM_WORLD});
    EXPECT_EQ(read_contents(io, path).state.weights_only, weights_only);
  }
  state.clear();
  read_tensors(io, folder + "/" + file_name(2), state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
}

// Where one rank holds what all write, it has a bounded part of it on its way.
TEST_F(Layouts, ARoundIsBoundedByWhatARankWritesAndSends) {
  EXPECT_EQ(TileExchange::tiles_of_a_round(4, 1), 32);
  EXPECT_EQ(TileExchange::tiles_of_a_round(512, 1), 128);
  EXPECT_EQ(TileExchange::tiles_of_a_round(512, 512), 4096);
  for (bool zero : {true, false}) {
    State state(world, {.tensor = 1, .data = world.size(), .zero = zero});
    state.fill();
    TileExchange exchange(world, world.size(), state.tensors(), 16);
    const int64_t tiles = int64_t(exchange.tiles().size());
    const int64_t of_a_round = TileExchange::tiles_of_a_round(world.size(), zero ? world.size() : 1);
    EXPECT_EQ(exchange.rounds(), (tiles + of_a_round - 1) / of_a_round);
    int64_t filled = 0;
    for (int64_t round = 0; round < exchange.rounds(); ++round) filled += int64_t(exchange.round(round).size());
    EXPECT_EQ(comm::all_reduce_value(world, filled), tiles);
  }
}

// Hosts differ, and HDF5 wants the same calls of all ranks: rank 0's texts are stored.
TEST_F(Layouts, TextsOfDifferentLengthOnTheRanks) {
  State state(world, {.tensor = 1, .data = world.size()});
  state.fill();
  RunState run = some_run_state();
  run.environment = std::string(size_t(10 + 1000 * world.rank()), char('a' + world.rank()));
  const std::string path = folder + "/" + file_name(1);
  write_checkpoint(world, io, state.tensors(), run, {.path = path, .io_comm = MPI_COMM_WORLD});
  EXPECT_EQ(read_contents(io, path).state.environment, std::string(10, 'a'));
}

// More ranks than rows, and a rank with nothing at all to write (CASES R40).
TEST_F(Layouts, RanksWithNothingToWrite) {
  const Declare few = [](nn::ParameterSet& parameters, int) { declare_one(parameters, "two_rows", {2, 3}); };
  State state(world, {.tensor = 1, .data = world.size()}, few);
  state.fill();
  const std::string path = folder + "/" + file_name(1);
  save(state, path, 3);
  state.clear();
  read_tensors(io, path, state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
}

// Files are made through MPI-IO where there are hints for it.
TEST_F(Layouts, MpiHints) {
  State state(world, {.tensor = 1, .data = world.size()});
  state.fill();
  const std::string path = folder + "/" + file_name(1);
  write_checkpoint(world, io, state.tensors(), some_run_state(),
                   {.path = path,
                    .io_comm = MPI_COMM_WORLD,
                    .mpi_hints = {{"striping_factor", "4"}, {"cb_buffer_size", "1048576"}},
                    .parts = 2,
                    .tile_elements = 16});
  state.clear();
  read_tensors(io, path, state.tensors(), "rms");
  EXPECT_EQ(state.wrong(), 0);
}

// Tensors that are one big tile, tiles that are not whole numbers of writes, tiles above every tensor (CASES R42).
TEST_F(Layouts, TileSizes) {
  State state(world, {.tensor = 1, .data = world.size()});
  for (int64_t tile : {int64_t(1), int64_t(7), kTileElements, int64_t(1) << 30}) {
    state.fill();
    const std::string path = folder + "/" + file_name(tile);
    save(state, path, tile);
    state.clear();
    read_tensors(io, path, state.tensors(), "rms");
    EXPECT_EQ(state.wrong(), 0) << tile;
    verify_tensors(io, path, [](double) {}, {world.rank(), world.size()});
  }
}

}  // namespace
}  // namespace keel::checkpoints
