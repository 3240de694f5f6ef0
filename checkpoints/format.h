// What is in a checkpoint file, and where. README.md gives the format as a grammar.
#pragma once

#include <string>
#include <vector>

#include "framework/nn/parameter.h"
#include "framework/train/hook.h"
#include "framework/train/probe.h"

namespace keel::checkpoints {

constexpr int64_t kFormatVersion = 1;
constexpr int64_t kTileElements = int64_t(1) << 18;  // 1 MiB of fp32

// The three logical tensors of a parameter.
enum class TensorKind { weight, moment1, moment2 };
constexpr TensorKind kTensorKinds[] = {TensorKind::weight, TensorKind::moment1, TensorKind::moment2};
const char* group_of(TensorKind kind);                               // "parameters"
std::string path_of(TensorKind kind, const std::string& parameter);  // "parameters/blocks.0.mlp.up.weight"
std::string checksums_of(const std::string& path);                   // "checksums/parameters/..."

// Tiles are groups of whole rows (of the outermost dim), about kTileElements each and at least one row. A tensor
// without elements is an internal error: no model has one.
class Tiling {
 public:
  Tiling(const Shape& shape, int64_t tile_elements = kTileElements);
  int64_t tiles() const { return (rows_ + rows_per_tile_ - 1) / rows_per_tile_; }
  int64_t first_row(int64_t tile) const { return tile * rows_per_tile_; }
  int64_t rows(int64_t tile) const { return std::min(rows_per_tile_, rows_ - first_row(tile)); }
  // Of the flattened logical tensor.
  int64_t begin(int64_t tile) const { return first_row(tile) * row_elements_; }
  int64_t elements(int64_t tile) const { return rows(tile) * row_elements_; }

 private:
  int64_t rows_ = 0, row_elements_ = 0, rows_per_tile_ = 0;
};

// Everything but tensors.
struct RunState {
  train::Progress progress;
  std::string config;            // resolved, YAML
  std::string environment;       // JSON
  std::string data_fingerprint;  // data::Dataset::fingerprint_text
  std::string qk_norm;           // "rms, scope head, weight per_head, ...": named where a checkpoint does not fit
  std::string hooks;             // JSON
  train::Probe probe;            // empty where the file has none
  bool weights_only = false;
};

// "step-00001000.h5"; and back, -1 for other names.
std::string file_name(int64_t step);
int64_t step_of(const std::string& file_name);

}  // namespace keel::checkpoints
