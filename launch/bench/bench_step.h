// The training step (train/training_step.h) without data files or hooks, timed by phase: what `keel bench` measures.
#pragma once

#include "framework/parallel/tensor_parallel.h"
#include "framework/train/training_step.h"
#include "launch/common/run_setup.h"
#include "models/decoder/telemetry_hook.h"

namespace keel {

// A model with random tokens, the same in every micro-step, at the peak learning rate.
class BenchedStep {
 public:
  // The device is waited for after each phase, unless `graphs` are to be replayed where training does so: then all of a
  // step's seconds are those of its update.
  BenchedStep(comm::Communicator& all, const FullConfig& config, Device device, bool graphs = false);

  // With telemetry: also what its hook reads and sums over ranks, counted as update.
  train::PhaseSeconds run(bool telemetry);
  double tokens() const { return double(config_.run.batch.sequences * sizes_.length); }
  const train::BatchSizes& sizes() const { return sizes_; }
  Device device() const { return device_; }
  DType activation() const { return activation_type(config_); }
  nn::TensorGroup& group() { return group_; }
  const train::StepReport& report() const { return report_; }  // of the last step
  double hook_seconds() const { return hook_seconds_; }        // of the last telemetry step: its hook's
  // Of this rank.
  int64_t planned_bytes() const;

 private:
  struct Nowhere : train::TelemetryArrays {
    void telemetry(const std::string&, int64_t, int64_t, const std::vector<float>&) override {}
    void telemetry(const std::string&, int64_t, const std::vector<uint64_t>&, const std::vector<int64_t>&) override {}
  };

  FullConfig config_;
  Device device_;
  bool graphs_;
  config::Layout layout_;
  train::BatchSizes sizes_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;

 public:
  models::Decoder decoder;

 private:
  std::optional<train::TrainingStep> step_;
  Nowhere nowhere_;
  std::optional<models::TelemetryHook> telemetry_;
  train::StepReport report_;
  double hook_seconds_ = 0;
  OwnedTensor tokens_, targets_, positions_;
};

}  // namespace keel
