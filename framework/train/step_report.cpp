#include "framework/train/step_report.h"

namespace keel::train {

const char* name_of(Action action) {
  switch (action) {
    case Action::proceed:
      return "proceed";
    case Action::skip:
      return "skip";
    case Action::lower_lr:
      return "lower_lr";
    case Action::stop_saved:
      return "stop_saved";
    case Action::roll_back:
      return "roll_back";
    case Action::stop_unstable:
      return "stop_unstable";
  }
  return "?";
}

}  // namespace keel::train
