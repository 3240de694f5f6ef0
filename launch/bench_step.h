// A training step without data files or hooks, timed by phase: what `keel bench` measures.
#pragma once

#include <chrono>

#include "framework/parallel/data_parallel.h"
#include "framework/parallel/tensor_parallel.h"
#include "framework/train/step_numbers.h"
#include "launch/run_setup.h"
#include "models/decoder/telemetry_hook.h"

namespace keel {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct StepSeconds {
  double forward = 0;  // with the loss and its gradient
  double backward = 0, reduction = 0, update = 0;
  double total() const { return forward + backward + reduction + update; }
};

// A model with random tokens.
class BenchedStep {
 public:
  BenchedStep(comm::Communicator& all, const FullConfig& config, Device device);

  // With telemetry: also what its hook reads and sums over ranks, counted as update.
  StepSeconds run(bool telemetry);
  double tokens() const { return double(config_.run.batch.sequences * sizes_.length); }
  const train::BatchSizes& sizes() const { return sizes_; }
  Device device() const { return device_; }
  DType activation() const { return activation_type(config_); }
  nn::TensorGroup& group() { return group_; }
  double loss() const;  // of the last step
  // Weights, gradients and moments, of this rank.
  int64_t state_bytes();

 private:
  struct Nowhere : train::TelemetryArrays {
    void telemetry(const std::string&, int64_t, int64_t, const std::vector<float>&) override {}
    void telemetry(const std::string&, int64_t, const std::vector<uint64_t>&, const std::vector<int64_t>&) override {}
  };

  void forward_backward(StepSeconds& seconds, bool telemetry, bool last);
  // Once the device has done what was started.
  double settled_seconds() const;

  FullConfig config_;
  Device device_;
  config::Layout layout_;
  train::BatchSizes sizes_;
  parallel::Mesh mesh_;
  parallel::TensorParallel group_;

 public:
  models::Decoder decoder;

 private:
  std::optional<parallel::DataParallel> reducer_;
  std::optional<optim::Adamw> optimizer_;
  std::optional<train::StepNumbers> numbers_;
  Nowhere nowhere_;
  std::optional<models::TelemetryHook> telemetry_;
  train::StepReport report_;  // for that hook
  OwnedTensor tokens_, targets_, positions_;
  int64_t updates_ = 0;
};

}  // namespace keel
