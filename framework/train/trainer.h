// The training loop. One step:
//
//   batch -> limits -> forward, backward (micro-steps) -> reduce -> norm, gate -> clip, optimizer -> report
//         -> judge hooks, of the step and of its update: verdict -> after_step hooks
//
// Knows a model only as nn::Model, and decides nothing by itself: hooks do, by limits that are known before the step.
// On a GPU everything up to the report is started without waiting; the host meets the device once per step, there. With
// one rank the device's part is replayed as two graphs (tensor/graph.h), up to the gate and from there on: the first is
// another one on telemetry steps.
#pragma once

#include "framework/optim/schedule.h"
#include "framework/parallel/data_parallel.h"
#include "framework/tensor/graph.h"
#include "framework/train/batches.h"
#include "framework/train/head_statistics.h"
#include "framework/train/hook.h"
#include "framework/train/step_numbers.h"

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

class Trainer {
 public:
  // The model's parameters are allocated and initialised. Everything outlives the trainer.
  Trainer(nn::Model& model, parallel::Mesh& mesh, StepBatches& batches, const data::SampleOrder& order,
          const TrainerOptions& options);

  void add(Hook& hook) { hooks_.push_back(&hook); }
  // After weights were set from outside (initial values, a checkpoint): packs them.
  void weights_changed();
  Ending run();

  // For checkpoints.
  Progress& progress() { return progress_; }
  optim::Adamw& optimizer() { return optimizer_; }
  nlohmann::json hook_states() const;
  void restore_hooks(const nlohmann::json& states);

  // Asked to stop after this step, by a signal or a time limit; seen by all ranks at the next step.
  void request_stop() { stop_requested_ = true; }

 private:
  void attempt(StepReport& report);
  template <class Work>
  void run_on_device(Graph& graph, const Work& work);
  void draw_batch(StepReport& report);
  std::span<const data::SampleId> own_rows(data::SamplePosition& position);
  void set_numbers(const StepReport& report);
  void forward_backward();
  void reduce();
  void observe_heads();
  void update();
  void look_closer();
  Tensor qk_clip_factors();
  void wait();
  void read_numbers(StepReport& report);
  void read_heads(StepReport& report) const;
  std::string source_of_non_finite();
  template <class Ask>
  Verdict ask_hooks(Ask ask);

  nn::Model& model_;
  parallel::Mesh& mesh_;
  StepBatches& batches_;
  const data::SampleOrder& order_;
  TrainerOptions options_;
  parallel::DataParallel data_parallel_;
  optim::Adamw optimizer_;
  std::vector<Hook*> hooks_;
  Progress progress_;
  bool stop_requested_ = false;

  std::vector<int64_t> indices_;
  std::vector<data::SampleId> samples_;
  const Device device_;
  const Stream stream_;  // the default one cannot be recorded
  Graph passes_, telemetry_passes_, update_;
  StepNumbers numbers_;
  OwnedTensor qk_clip_factors_;  // [L, H of this rank]
  HeadStatistics heads_;
  StepReport report_;  // of the step at hand
  bool telemetry_step_ = false;
};

}  // namespace keel::train
