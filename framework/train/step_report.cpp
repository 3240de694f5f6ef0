#include "framework/train/step_report.h"

namespace keel::train {

const char* name_of(Action action) {
  constexpr const char* kNames[] = {"proceed", "skip", "lower_lr", "stop_saved", "roll_back", "stop_unstable"};
  return kNames[size_t(action)];
}

}  // namespace keel::train
