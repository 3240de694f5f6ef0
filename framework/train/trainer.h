// The training loop. One step:
//
//   batch -> limits -> forward, backward (micro-steps) -> reduce -> norm, gate -> clip, optimizer -> report
//         -> judge hooks, of the step and of its update: verdict -> after_step hooks
//
// Knows a model only as nn::Model, and decides nothing by itself: hooks do, by limits that are known before the step.
// From the batch to the report it is a TrainingStep; the host meets its GPU once per step, for the report.
#pragma once

#include "framework/train/hook.h"
#include "framework/train/training_step.h"

namespace keel::train {

class Trainer {
 public:
  // The model's parameters are allocated and initialised. Everything outlives the trainer.
  Trainer(nn::Model& model, parallel::Mesh& mesh, StepBatches& batches, const data::SampleOrder& order,
          const TrainerOptions& options);

  void add(Hook& hook) { hooks_.push_back(&hook); }
  // After weights were set from outside (initial values, a checkpoint): packs them.
  void weights_changed() { step_.weights_changed(progress_.updates); }
  Ending run();

  // For checkpoints.
  Progress& progress() { return progress_; }
  optim::Adamw& optimizer() { return step_.optimizer(); }
  nlohmann::json hook_states() const;
  void restore_hooks(const nlohmann::json& states);

  // Asked to stop after this step, by a signal or a time limit; seen by all ranks at the next step.
  void request_stop() { stop_requested_ = true; }

 private:
  void attempt(StepReport& report);
  Verdict judge_attempt();
  void draw_batch(StepReport& report);
  std::span<const data::SampleId> own_rows(data::SamplePosition& position);
  TrainingStep::Inputs inputs_of(const StepReport& report) const;
  void read_ahead();
  template <class Ask>
  Verdict ask_hooks(Ask ask);

  parallel::Mesh& mesh_;
  StepBatches& batches_;
  const data::SampleOrder& order_;
  const TrainerOptions options_;
  TrainingStep step_;
  const TrainingStep::MicroBatch micro_batch_;
  std::vector<Hook*> hooks_;
  Progress progress_;
  bool stop_requested_ = false;

  std::vector<int64_t> indices_;
  std::vector<data::SampleId> samples_;
  StepReport report_;  // of the step at hand
};

}  // namespace keel::train
