// Ends a run that is lost (QKNORM.md section 6): its largest logit has passed a limit, a loss or gradient was not
// finite, or its held-out loss is above a bigram's, at two consecutive evaluations in the second half of the run.
#pragma once

#include "framework/train/evaluation_hook.h"

namespace keel::train {

struct LostOptions {
  double largest_logit = 0;
  double bigram_loss = 0;  // nats per token, on the held-out text
  int64_t total_steps = 0;
};

class LostHook : public Hook {
 public:
  // `evaluation` outlives this and sees each step first.
  LostHook(const EvaluationHook& evaluation, const LostOptions& options) : evaluation_(evaluation), options_(options) {}

  // Judges the evaluation that a run makes up where it goes on.
  Verdict started(const Progress& progress) override { return judge_evaluation(progress.step, ""); }
  Verdict after_step(const StepReport& report, const Verdict& verdict, const Progress& progress) override;

  std::string name() const override { return "lost"; }
  nlohmann::json state() const override { return {{"blown", blown_}, {"in_a_row", in_a_row_}}; }
  void restore(const nlohmann::json& state) override;

 private:
  // Where there was one after this step.
  Verdict judge_evaluation(int64_t step, const std::string& more);

  const EvaluationHook& evaluation_;
  LostOptions options_;
  bool blown_ = false;  // a logit or a number that is not finite has settled it
  int64_t in_a_row_ = 0;
};

}  // namespace keel::train
