// Held-out loss before the first step if asked, every N steps and at the end of the run, also where that is stopped in
// trouble with a loss and a gradient that are finite.
#pragma once

#include "framework/train/evaluation.h"
#include "framework/train/run_files_hook.h"

namespace keel::train {

struct EvaluationTimes {
  int64_t every = 0;  // steps; 0: at the end only
  int64_t total_steps = 0;
  bool first = false;  // also before the first step of a new run, as step 0
  // Whether the run is to end soon, on this rank: a save waits for no evaluation.
  std::function<bool()> interrupted = {};
};

class EvaluationHook : public Hook {
 public:
  // All outlive this.
  EvaluationHook(Evaluation& evaluation, nn::Model& model, parallel::Mesh& mesh, RunFilesHook& files,
                 EvaluationTimes times)
      : evaluation_(evaluation), model_(model), mesh_(mesh), files_(files), times_(std::move(times)) {}

  void start(const Progress& progress) override;
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;
  void finish(const Progress& progress, const Ending& ending) override;

  // Of the step just over, where there was an evaluation: nats per counted token.
  const std::optional<double>& loss() const { return loss_; }

 private:
  void evaluate(int64_t step);

  Evaluation& evaluation_;
  nn::Model& model_;
  parallel::Mesh& mesh_;
  RunFilesHook& files_;
  EvaluationTimes times_;
  std::optional<double> loss_;
  bool finite_ = true;  // the last step's loss and gradient norm
};

}  // namespace keel::train
