// What a training run stands on before its loop and hooks are made.
#pragma once

#include "framework/comm/world.h"
#include "framework/data/dataset.h"
#include "framework/parallel/mesh.h"
#include "framework/train/batches.h"
#include "framework/train/run_files_hook.h"
#include "launch/common/run_setup.h"
#include "models/decoder/decoder.h"

namespace keel {

std::string directory_of(const config::RunConfig& run);

// Who has which part, the device, the data with its order, and the model. Members in the order in which they are made.
struct PreparedRun {
  // Throws where config, ranks, hosts, device and data do not agree; writes nothing. verify_data: reads every token, as
  // the config may ask for. Collective.
  PreparedRun(comm::World& world, FullConfig config, bool verify_data);

  void allocate_model();
  // What is trained on what, in lines for people.
  void announce();
  // Operations per token, and the rate of all ranks that MFU is a share of. Collective.
  train::Throughput throughput();
  // Of this rank, as planned: its part of the training state, packed weights, activations.
  int64_t memory_bytes();

  comm::World& world;
  FullConfig config;
  config::Layout layout;
  std::string directory;
  Device device;
  std::string environment;
  models::Decoder decoder;
  data::Dataset training_data;
  std::optional<data::Dataset> validation_data;
  data::SampleOrder order;
  std::string data_fingerprint;  // of the training data
  parallel::Mesh mesh;
  parallel::TensorParallel group;
  train::BatchSizes sizes;
  bool speaker;  // rank 0: prints lines and writes the run's files
};

}  // namespace keel
