// A trained model for use: the config and weights of a checkpoint, at the layout of this start.
#pragma once

#include "checkpoints/reader.h"
#include "framework/comm/world.h"
#include "framework/io/io_thread.h"
#include "launch/run_setup.h"

namespace keel {

// The QK-Norm variant in words, which a checkpoint records and loading compares: "rms, scope head, weight per_head,
// ...".
std::string qk_norm_text(const models::DecoderConfig& model);

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
