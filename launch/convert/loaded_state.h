// The whole state of a run from its checkpoint, to be changed and written again.
#pragma once

#include "checkpoints/reader.h"
#include "checkpoints/writer.h"
#include "launch/common/loaded_model.h"

namespace keel {

class LoadedState {
 public:
  // `training`: with memory for forward and backward of micro-batches of `batch`; moments where the checkpoint has
  // them. Groups of `tensor` ranks share the heads, and all groups hold the same.
  LoadedState(comm::World& world, FullConfig config, int tensor, nn::BatchShape batch, bool training);

  // Weights, moments and everything else of `path`, whose config is this one's.
  void read(const std::string& path);
  // Everything but tensors from `other`; tensors of the same name and shape too, with their moments.
  void take(const LoadedState& other);
  int64_t write(const std::string& path);

  nn::Parameter& parameter(int64_t layer, const std::string& name);  // "attention.q_norm.weight"
  bool has_moments() const { return !run.weights_only; }
  // A moment of a parameter, of its shape.
  Tensor moment(const nn::Parameter& parameter, checkpoints::TensorKind kind) const;

  FullConfig config;
  checkpoints::RunState run;
  parallel::Mesh mesh;
  parallel::TensorParallel group;
  models::Decoder decoder;

 private:
  comm::World& world_;
  std::optional<optim::Adamw> optimizer_;
};

}  // namespace keel
