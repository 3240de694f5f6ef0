// All ranks of a test, and a directory that they share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <filesystem>

#include "framework/comm/mpi.h"
#include "tests/checkpoints/state.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {

// The first `ranks` of MPI_COMM_WORLD; the others get a group of their own, which they leave alone.
class Ranks {
 public:
  explicit Ranks(int ranks) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    in_ = rank < ranks;
    MPI_Comm_split(MPI_COMM_WORLD, in_, rank, &io_comm);
    world = comm::make_mpi_communicator(io_comm);
  }
  ~Ranks() {
    world.reset();
    MPI_Comm_free(&io_comm);
  }
  bool in() const { return in_; }

  MPI_Comm io_comm = MPI_COMM_NULL;
  std::unique_ptr<comm::Communicator> world;

 private:
  bool in_;
};

class SharedFolder : public ::testing::Test {
 protected:
  SharedFolder() : all_(comm::make_mpi_communicator(MPI_COMM_WORLD)), world(*all_) {
    if (world.rank() == 0) scratch_ = std::make_unique<testing::TemporaryFolder>();
    folder = comm::broadcast_text(world, scratch_ ? scratch_->path() : "");
  }
  ~SharedFolder() { world.barrier(); }

  int64_t save(State& state, const std::string& path, int64_t tile_elements = 16) {
    return write_checkpoint(state.mesh.world(), io, state.tensors(), some_run_state(),
                            {.path = path, .io_comm = MPI_COMM_WORLD, .tile_elements = tile_elements});
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::unique_ptr<comm::Communicator> all_;
  std::unique_ptr<testing::TemporaryFolder> scratch_;

 protected:
  comm::Communicator& world;
  std::string folder;
  io::IoThread io;
};

// The error that every rank must get.
template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::internal, "no error");
}

}  // namespace keel::checkpoints
