// Which elements of the logical tensors this rank holds, and where.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "checkpoints/format.h"
#include "framework/optim/adamw.h"

namespace keel::checkpoints {

// Elements [logical, logical + count) of a flattened logical tensor, in this rank's memory.
struct Run {
  int64_t logical = 0;
  float* data = nullptr;
  int64_t count = 0;
  int64_t end() const { return logical + count; }
};

// One of the three logical tensors of a parameter.
struct LogicalTensor {
  const nn::Parameter* parameter = nullptr;
  TensorKind kind = TensorKind::weight;
  auto operator<=>(const LogicalTensor&) const = default;
  const Shape& shape() const { return parameter->spec.shape; }
  std::string path() const { return path_of(kind, parameter->spec.name); }
  std::string checksums() const { return checksums_of(path()); }
};

class Snapshot;

// The state's tensors on this rank.
struct LocalTensors {
  nn::ParameterSet& parameters;
  optim::Adamw* optimizer = nullptr;   // null: only weights, all of them up to date
  bool data_replica = false;           // another data rank writes the same: unsharded, and not the first of them
  bool weights_only = false;           // no moments; the optimizer still says which weights are up to date here
  const Snapshot* snapshot = nullptr;  // write these values instead of those that the tensors have by then

  std::vector<TensorKind> kinds() const;
};
std::vector<LogicalTensor> tensors_of(const LocalTensors& tensors);

// What this rank writes of a tensor: each logical element is written by exactly one rank of the world. In order.
std::vector<Run> runs_to_write(const LocalTensors& tensors, const LogicalTensor& tensor);

// A copy of all that this rank writes, so that training can go on while it is written. Its memory is kept from one copy
// to the next, and suffices for smaller ones.
class Snapshot {
 public:
  // The same parameters each time.
  void take(const LocalTensors& tensors);
  const std::vector<Run>& runs(const LogicalTensor& tensor) const;
  int64_t memory_bytes() const { return memory_.size_bytes(); }

 private:
  // Elements [to, to + count) of memory_.
  struct Piece {
    const float* from;
    int64_t to, count;
  };
  void plan(const LocalTensors& tensors);
  void add(const float* from, int64_t to, int64_t count);

  std::vector<LogicalTensor> tensors_;  // that are planned
  std::map<LogicalTensor, std::vector<Run>> runs_;
  std::vector<Piece> pieces_;
  Buffer memory_;
};

// What this rank wants to read: weights of its whole shard, moments of the spans that it updates. In order.
std::vector<Run> runs_to_read(const LocalTensors& tensors, const LogicalTensor& tensor);

}  // namespace keel::checkpoints
