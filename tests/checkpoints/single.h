// A state on one rank without MPI.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoints/state.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::checkpoints {

class Single : public ::testing::Test {
 protected:
  explicit Single(Declare declare = declare_all) : state(*world, {}, declare) { state.fill(); }
  int64_t save(const std::string& path, int64_t tile_elements = 16) {
    return write_checkpoint(*world, io, state.tensors(), some_run_state(),
                            {.path = path, .tile_elements = tile_elements});
  }
  // What loading `path` into parameters declared so complains about.
  std::string complaint(const std::string& path, Declare declare, const std::string& qk_norm = "rms") {
    State other(*world, {}, declare);
    other.clear();
    const std::string message = testing::message_of([&] { read_tensors(io, path, other.tensors(), qk_norm); });
    const nn::Parameter& first = other.parameters.all().front();
    EXPECT_EQ(std::isnan(first.master.as<float>()[0]), !message.empty()) << "overwritten before the complaint";
    return message;
  }

  std::unique_ptr<comm::Communicator> world = comm::make_self_communicator();
  testing::TemporaryFolder folder;
  io::IoThread io;
  State state;
};

}  // namespace keel::checkpoints
