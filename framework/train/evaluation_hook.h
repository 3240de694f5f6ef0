// Held-out loss before the first step if asked, every N steps and at the end of the run, also where that is stopped in
// trouble with a loss and a gradient that are finite. One that was left out, since the run was to end, ends it at its
// step, so that it is made up where the run goes on; a run whose last one was left out is not done.
#pragma once

#include "framework/train/evaluation.h"
#include "framework/train/run_files_hook.h"

namespace keel::train {

struct EvaluationTimes {
  int64_t every = 0;  // steps; 0: at the end only
  int64_t total_steps = 0;
  bool first = false;  // also before the first step of a new run, as step 0
  // Whether the run is to end soon, on this rank: a save waits for no evaluation. Not asked where nothing is to be
  // saved: at the start, and at the end of a run in trouble.
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

  std::string name() const override { return "evaluation"; }
  nlohmann::json state() const override { return {{"left_out", left_out_}}; }
  void restore(const nlohmann::json& state) override { left_out_ = state.at("left_out").get<int64_t>(); }

  // Of the step just over, where there was an evaluation: nats per counted token.
  const std::optional<double>& loss() const { return loss_; }

 private:
  enum class Needed { yes, no };
  void evaluate(int64_t step, Needed needed);

  Evaluation& evaluation_;
  nn::Model& model_;
  parallel::Mesh& mesh_;
  RunFilesHook& files_;
  EvaluationTimes times_;
  std::optional<double> loss_;
  int64_t left_out_ = -1;  // the last step whose evaluation was
  bool finite_ = true;     // the last step's loss and gradient norm
};

}  // namespace keel::train
