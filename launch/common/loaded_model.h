// A trained model for use: the config and weights of a checkpoint, at the layout of this start.
#pragma once

#include "checkpoints/reader.h"
#include "framework/comm/world.h"
#include "framework/io/io_thread.h"
#include "launch/common/run_setup.h"

namespace keel {

// The config that a checkpoint holds, with overrides.
FullConfig stored_config(io::IoThread& io, const std::string& path, std::span<const std::string> overrides = {});
// The same, read on rank 0 and told to all. Collective.
FullConfig stored_config(comm::World& world, const std::string& path, std::span<const std::string> overrides = {});

// `tensor`, where the ranks divide into groups of so many and the heads over those of a group.
int checked_tensor(const comm::World& world, const models::DecoderConfig& model, int tensor);

struct LoadOptions {
  std::string path;
  std::vector<std::string> overrides;
  int tensor = 1;         // ranks that share the heads; groups of them stand side by side on different data
  int64_t sequences = 0;  // of a micro-batch; 0 = of about 4,096 tokens
  int64_t length = 0;     // tokens of a sequence; 0 = as trained
};

class LoadedModel {
 public:
  LoadedModel(comm::World& world, const LoadOptions& options);

  FullConfig config;
  int64_t step = 0;
  train::BatchSizes sizes;
  Device device;
  parallel::Mesh mesh;
  parallel::TensorParallel group;
  models::Decoder decoder;
};

}  // namespace keel
