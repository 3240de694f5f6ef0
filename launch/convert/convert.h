// keel convert FROM TO: between Keel's checkpoints and folders of Hugging Face transformers, and from one checkpoint to
// another whose QK-Norm differs.
#pragma once

#include "framework/comm/world.h"

namespace keel {

enum class RotaryPairs { halves, interleaved };

struct ConvertOptions {
  std::string from, to;
  std::string type = "fp32";                 // of exported weights: fp32, bf16, fp16
  RotaryPairs rotary = RotaryPairs::halves;  // of the foreign files; Keel's own are halves
  bool allow_unexpected = false;
  int64_t file_bytes = int64_t(5) << 30;  // of one exported file
};

// A folder (or one .safetensors file with config.json beside it) to a checkpoint of weights. All ranks share the heads.
void import_model(const ConvertOptions& options, comm::World& world);
// A checkpoint to a folder that transformers loads.
void export_model(const ConvertOptions& options, comm::World& world);

}  // namespace keel
