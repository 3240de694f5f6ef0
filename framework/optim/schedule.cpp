#include "framework/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace keel::optim {
namespace {

// 0 at `begin`, 1 at `end` and after.
double progress(int64_t step, int64_t begin, int64_t end) {
  if (step >= end) return 1;
  if (step <= begin) return 0;
  return double(step - begin) / double(end - begin);
}

double decayed(const Schedule& s, int64_t step) {
  switch (s.kind) {
    case ScheduleKind::cosine: {
      const double p = progress(step, s.warmup_steps, s.total_steps);
      return s.final_ratio + (1 - s.final_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * p));
    }
    case ScheduleKind::wsd:
      if (s.decay_steps == 0) return 1;
      return 1 + (s.final_ratio - 1) *
                     progress(step, std::max(s.total_steps - s.decay_steps, s.warmup_steps), s.total_steps);
    case ScheduleKind::constant:
      return 1;
  }
  return 1;
}

}  // namespace

double learning_rate(const Schedule& schedule, int64_t step) {
  if (schedule.warmup_steps > 0 && step <= schedule.warmup_steps)
    return schedule.peak * double(std::max<int64_t>(step, 0)) / double(schedule.warmup_steps);
  return schedule.peak * decayed(schedule, step);
}

}  // namespace keel::optim
