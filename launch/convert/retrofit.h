// keel convert --retrofit qk_norm=rms: puts QK-Norm into a model trained without it. And --fold: takes a learned logit
// scale into the gains.
#pragma once

#include <string>

#include "framework/comm/world.h"

namespace keel {

struct RetrofitOptions {
  std::string from, to;  // checkpoints
  std::string change;    // "qk_norm=rms"
  std::string data;      // prefix of token files to calibrate on; "" = data.valid of the run
  int64_t sequences = 64;
  int tensor = 1;         // ranks that share the heads; groups of them see different sequences
  bool calibrate = true;  // false: gains and scales stay as a new model starts with them, for comparison
};

void retrofit(const RetrofitOptions& options, comm::World& world);

// Per-head (or per-layer) scales become part of the q gains, 1 + w becomes w, shared gains become per_head ones: the
// same model in fewer words.
void fold_scale(const std::string& from, const std::string& to, comm::World& world);

}  // namespace keel
