// Learning rates as pure functions of the step, so that a resumed run needs to know nothing else.
#pragma once

#include <cstdint>

#include "framework/config/run_config.h"

namespace keel::optim {

using config::ScheduleKind;

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  int64_t decay_steps = 0;  // wsd: the last steps, linear down
  double final_ratio = 0;   // of the peak, reached at the last step
};

// The rate of the step-th attempt, counted from 1. Warm-up is linear, step/warmup of the peak: the peak itself at
// step == warmup_steps. Steps beyond the total keep the final rate.
double learning_rate(const Schedule& schedule, int64_t step);

}  // namespace keel::optim
