#include "framework/train/ladder.h"

#include <fmt/format.h>

namespace keel::train {

constexpr int64_t kWindow = 1000;

bool Ladder::may_skip(const Steps& skips) const {
  return skipped_in_a_row_ < options_.skips_in_a_row && int64_t(skips.size()) < options_.skips_of_1000;
}

bool Ladder::skip(int64_t step, Steps& skips) {
  if (!may_skip(skips)) return false;
  ++skipped_in_a_row_;
  skips.push_back(step);
  return true;
}

// While the rate is low already, once more is lower still.
void Ladder::lower(int64_t step) {
  lowered_factor_ = options_.lr_factor * (step <= lowered_until_ ? lowered_factor_ : 1);
  lowered_until_ = step + options_.lowered_steps;
  ++lowered_times_;
  skipped_in_a_row_ = 0;
  skips_.clear();
}

Action Ladder::climb(int64_t step, Grade grade) {
  if (grade == Grade::light) return skip(step, light_skips_) ? Action::skip : Action::proceed;
  if (first_step_ == 0) first_step_ = step;
  last_trouble_ = step;
  if (grade == Grade::heavy && skip(step, skips_)) return Action::skip;
  if (lowered_times_ < options_.lowerings) {
    lower(step);
    return Action::lower_lr;
  }
  return options_.may_roll_back && options_.may_roll_back(first_step_) ? Action::roll_back : Action::stop_unstable;
}

void Ladder::accept(int64_t step) {
  for (Steps* skips : {&skips_, &light_skips_})
    while (!skips->empty() && skips->front() <= step - kWindow) skips->pop_front();
  skipped_in_a_row_ = 0;
  first_step_ = 0;
  if (step - last_trouble_ >= options_.calm_steps) lowered_times_ = 0;
}

std::string Ladder::history() const {
  return fmt::format(
      "{} skipped steps in a row (stability.max_skips) and {} of the last 1,000, the learning rate lowered {} "
      "times",
      skipped_in_a_row_, skips_.size(), lowered_times_);
}

nlohmann::json Ladder::state() const {
  return {{"skipped_in_a_row", skipped_in_a_row_},
          {"lowered_times", lowered_times_},
          {"lowered_until", lowered_until_},
          {"lowered_factor", lowered_factor_},
          {"first_step", first_step_},
          {"last_trouble", last_trouble_},
          {"skips", skips_},
          {"light_skips", light_skips_}};
}

void Ladder::restore(const nlohmann::json& state) {
  skipped_in_a_row_ = state.at("skipped_in_a_row").get<int64_t>();
  lowered_times_ = state.at("lowered_times").get<int64_t>();
  lowered_until_ = state.at("lowered_until").get<int64_t>();
  lowered_factor_ = state.at("lowered_factor").get<double>();
  first_step_ = state.at("first_step").get<int64_t>();
  last_trouble_ = state.at("last_trouble").get<int64_t>();
  skips_ = state.at("skips").get<Steps>();
  light_skips_ = state.at("light_skips").get<Steps>();
}

}  // namespace keel::train
