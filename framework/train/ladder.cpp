#include "framework/train/ladder.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::train {

constexpr int64_t kWindow = 1000;

bool Ladder::may_skip(const Skips& skips) const {
  return skips.in_a_row < options_.max_skips &&
         int64_t(skips.steps.size()) < std::max(options_.max_skips_of_1000, options_.max_skips);
}

bool Ladder::skip(int64_t step, Skips& skips) {
  if (!may_skip(skips)) return false;
  ++skips.in_a_row;
  skips.steps.push_back(step);
  return true;
}

// While the rate is low already, once more is lower still.
void Ladder::lower(int64_t step) {
  lowered_factor_ = options_.lower_lr.factor * (step <= lowered_until_ ? lowered_factor_ : 1);
  lowered_until_ = step + options_.lower_lr.steps;
  ++lowered_times_;
  heavy_ = {};
}

Action Ladder::climb(int64_t step, Grade grade) {
  if (grade == Grade::light) return skip(step, light_) ? Action::skip : Action::proceed;
  if (first_step_ == 0) first_step_ = step;
  last_trouble_ = step;
  if (grade == Grade::heavy && skip(step, heavy_)) return Action::skip;
  if (lowered_times_ < options_.lower_lr.times) {
    lower(step);
    return Action::lower_lr;
  }
  return may_roll_back_ && may_roll_back_(first_step_) ? Action::roll_back : Action::stop_unstable;
}

void Ladder::accept(int64_t step) {
  for (Skips* skips : {&heavy_, &light_}) {
    skips->in_a_row = 0;
    while (!skips->steps.empty() && skips->steps.front() <= step - kWindow) skips->steps.pop_front();
  }
  first_step_ = 0;
  if (step - last_trouble_ >= options_.calm_steps) lowered_times_ = 0;
}

std::string Ladder::history() const {
  return fmt::format(
      "{} skipped steps in a row (stability.max_skips) and {} of the last 1,000 (max_skips_of_1000; neither counts "
      "spikes of the gradient norm, nor skips before the learning rate was last lowered), the learning rate lowered {} "
      "times",
      heavy_.in_a_row, heavy_.steps.size(), lowered_times_);
}

nlohmann::json Ladder::state() const {
  return {{"skipped_in_a_row", heavy_.in_a_row}, {"light_skipped_in_a_row", light_.in_a_row},
          {"lowered_times", lowered_times_},     {"lowered_until", lowered_until_},
          {"lowered_factor", lowered_factor_},   {"first_step", first_step_},
          {"last_trouble", last_trouble_},       {"skips", heavy_.steps},
          {"light_skips", light_.steps}};
}

void Ladder::restore(const nlohmann::json& state) {
  heavy_ = {state.at("skipped_in_a_row").get<int64_t>(), state.at("skips").get<Steps>()};
  light_ = {state.value("light_skipped_in_a_row", int64_t(0)), state.at("light_skips").get<Steps>()};  // older files: 0
  lowered_times_ = state.at("lowered_times").get<int64_t>();
  lowered_until_ = state.at("lowered_until").get<int64_t>();
  lowered_factor_ = state.at("lowered_factor").get<double>();
  first_step_ = state.at("first_step").get<int64_t>();
  last_trouble_ = state.at("last_trouble").get<int64_t>();
}

}  // namespace keel::train
