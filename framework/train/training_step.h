// A step as ranks and devices take it:
//
//   numbers up -> forward, backward (micro-steps) -> reduce -> norm, gate -> clip, optimizer, weights published
//              -> numbers down
//
// Knows neither files nor hooks. On a GPU everything is started without waiting. With one rank the device's part is
// replayed as two graphs (tensor/graph.h), up to the gate and from there on: the first is another one on telemetry
// steps.
#pragma once

#include "framework/optim/adamw.h"
#include "framework/optim/schedule.h"
#include "framework/parallel/data_parallel.h"
#include "framework/tensor/graph.h"
#include "framework/train/batches.h"
#include "framework/train/head_statistics.h"
#include "framework/train/step_numbers.h"
#include "framework/train/step_report.h"

namespace keel::train {

struct TrainerOptions {
  optim::Schedule schedule;
  ops::AdamwOptions adamw;
  double weight_decay = 0;
  bool independent_decay = false;  // decay * lr/peak instead of decay * lr
  double clip_norm = 0;            // 0 = off
  double qk_clip_tau = 0;          // 0 = off
  nn::LossOptions loss;
  int64_t total_steps = 0;
  int64_t telemetry_every = 0;  // 0 = never
  bool zero = true;
  bool graphs = true;                     // on one GPU
  std::optional<uint64_t> rounding_seed;  // of compute copies that are rounded stochastically
};

class TrainingStep {
 public:
  // The model's parameters are allocated and initialised. Everything outlives this.
  TrainingStep(nn::Model& model, parallel::Mesh& mesh, const BatchSizes& sizes, const TrainerOptions& options);

  struct Inputs {
    int64_t step = 0;     // this attempt, counted from 1
    int64_t updates = 0;  // made before it
    double lr = 0;
    StepLimits limits;
    int64_t counted_tokens = 0;  // of the global batch
    bool telemetry = false;
    bool stop_requested = false;  // of this rank
  };
  // This rank's.
  using MicroBatch = std::function<nn::TokenBatch(int64_t micro_step)>;
  // On the host, where a GPU may be far behind; forward and backward in every micro-step, but not where a graph is
  // replayed.
  using PhaseEnded = std::function<void(Phase)>;

  // A GPU may still be at work on it. Collective, as read and look_closer are.
  void run(const Inputs& inputs, const MicroBatch& batch, const PhaseEnded& ended);
  void wait() const;
  // What the step showed, once it was waited for.
  void read(StepReport& report);
  // A step that was not taken is of interest: its statistics of heads, from a second pass, whose gradients nobody uses.
  void look_closer(StepReport& report, const MicroBatch& batch);
  // After weights were set from outside (initial values, a checkpoint) that have seen so many updates: packs them.
  void weights_changed(int64_t updates);

  optim::Adamw& optimizer() { return optimizer_; }
  // To be current while steps run: the default one cannot be recorded.
  const Stream& stream() const { return stream_; }

 private:
  template <class Work>
  void run_on_device(Graph& graph, const Work& work);
  void set_numbers();
  void forward_backward(const MicroBatch& batch, const PhaseEnded& ended);
  void reduce();
  void observe_heads();
  void update();
  Tensor qk_clip_factors();
  void read_heads(StepReport& report) const;
  std::string source_of_non_finite();

  nn::Model& model_;
  parallel::Mesh& mesh_;
  const BatchSizes sizes_;
  const TrainerOptions options_;
  parallel::DataParallel data_parallel_;
  optim::Adamw optimizer_;
  const Device device_;
  const Stream stream_;
  Graph passes_, telemetry_passes_, update_;
  StepNumbers numbers_;
  OwnedTensor qk_clip_factors_;  // [L, H of this rank]
  HeadStatistics heads_;
  Inputs inputs_;  // of the step at hand
};

}  // namespace keel::train
