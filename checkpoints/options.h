// What saving and resuming are told.
#pragma once

#include <functional>

#include "checkpoints/io_limit.h"
#include "checkpoints/latest.h"
#include "checkpoints/local_runs.h"
#include "framework/config/run_config.h"
#include "framework/io/io_thread.h"
#include "framework/train/probe.h"
#include "framework/train/trainer.h"

namespace keel::checkpoints {

// A run that was stored, beside this one.
struct Comparison {
  std::vector<std::string> config_changes, environment_changes;  // what is another one now, in lines
  std::string resume;          // what its checkpoint.resume was, in the same words as Resume::find() gets it
  double probe_tolerance = 0;  // of the loss of its probe, relative
};

struct CheckpointOptions {
  std::string directory;  // of the checkpoints: runs/NAME/checkpoints
  config::CheckpointConfig checkpoint;
  // Called before each save: for what must not be missing from a run that goes on from it.
  std::function<void()> before_save;
  // Called on the thread that saves, before it copies the state: there tests let it fail, and look around.
  std::function<void()> before_copy = {};
  // Texts that go into each file.
  std::string config, environment, data_fingerprint, qk_norm;
  // Throws where a run that was stored must not be gone on with.
  std::function<Comparison(const RunState& stored)> compare;
  train::Note note = {};  // where events go

  double time_limit_seconds() const { return double(checkpoint.time_limit.count()); }
};

// What of a run goes into a checkpoint. Everything outlives the hook.
struct CheckpointParts {
  comm::Communicator& world;
  comm::Communicator& saves;  // all ranks, for the thread that saves alone
  MPI_Comm io_comm;           // all ranks, for the I/O thread alone
  io::IoThread& io;
  nn::Model& model;
  parallel::Mesh& mesh;
  train::Trainer& trainer;
  bool zero = true;
  train::Probe probe = {};  // stored with each save, its loss computed then; empty: none

  LocalTensors tensors() const {
    return {.parameters = model.parameters(),
            .optimizer = &trainer.optimizer(),
            .data_replica = !zero && mesh.data().rank() != 0};
  }
};

}  // namespace keel::checkpoints
