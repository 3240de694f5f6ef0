#include "framework/train/lost_hook.h"

#include <fmt/format.h>

#include <cmath>

namespace keel::train {

Verdict LostHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  const bool finite = std::isfinite(report.loss) && std::isfinite(report.gradient_norm);
  blown_ |= !finite || !(report.largest() <= options_.largest_logit);
  const std::optional<double>& loss = evaluation_.loss();
  if (!loss) return {};
  const bool lost = blown_ || !(*loss <= options_.bigram_loss);
  in_a_row_ = lost && 2 * report.step > options_.total_steps ? in_a_row_ + 1 : 0;
  if (in_a_row_ < 2 || report.step == options_.total_steps) return {};
  return {.action = Action::stop_unstable,
          .reason = fmt::format("lost at step {}: held-out loss {:.4f} (a bigram's is {:.4f}), largest logit {:.4g}",
                                report.step, *loss, options_.bigram_loss, report.largest()),
          .lost = true};
}

void LostHook::restore(const nlohmann::json& state) {
  blown_ = state.at("blown").get<bool>();
  in_a_row_ = state.at("in_a_row").get<int64_t>();
}

}  // namespace keel::train
