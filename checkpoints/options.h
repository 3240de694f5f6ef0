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

struct CheckpointOptions {
  std::string directory;  // of the checkpoints: runs/NAME/checkpoints
  config::CheckpointConfig checkpoint;
  // Called before each save: for what must not be missing from a run that goes on from it.
  std::function<void()> before_save;
  // Called on the thread that saves, before it copies the state: there tests let it fail, and look around.
  std::function<void()> before_copy = {};
  // Texts that go into each file.
  std::string config, environment, data_fingerprint, qk_norm;
  // Of the loss of the stored probe, relative, given the config that it was computed with. None: 1e-4.
  std::function<double(const std::string& stored)> probe_tolerance = {};
  // Throws where a stored config must not be gone on with; otherwise says in lines what changed.
  std::function<std::vector<std::string>(const std::string& stored)> compare_configs;
  // What checkpoint.resume was in a stored config, in the same words as find() gets it. None: something else.
  std::function<std::string(const std::string& stored)> resume_of = {};
  // Says in lines what of the stored environment is another one now.
  std::function<std::vector<std::string>(const std::string& stored)> compare_environments = {};
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
