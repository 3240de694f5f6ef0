#include "framework/train/lost_hook.h"

#include <fmt/format.h>

namespace keel::train {

Verdict LostHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  blown_ |= !report.finite() || !(report.largest() <= options_.largest_logit);
  return judge_evaluation(report.step, fmt::format(", largest logit {:.4g}", report.largest()));
}

Verdict LostHook::judge_evaluation(int64_t step, const std::string& more) {
  const std::optional<double>& loss = evaluation_.loss();
  if (!loss) return {};
  const bool lost = blown_ || !(*loss <= options_.bigram_loss);
  in_a_row_ = lost && 2 * step > options_.total_steps ? in_a_row_ + 1 : 0;
  if (in_a_row_ < 2 || step == options_.total_steps) return {};
  return {.action = Action::stop_unstable,
          .reason = fmt::format("lost at step {}: held-out loss {:.4f} (a bigram's is {:.4f}){}", step, *loss,
                                options_.bigram_loss, more),
          .lost = true};
}

void LostHook::restore(const nlohmann::json& state) {
  blown_ = state.at("blown").get<bool>();
  in_a_row_ = state.at("in_a_row").get<int64_t>();
}

}  // namespace keel::train
