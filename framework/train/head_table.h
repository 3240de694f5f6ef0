// The statistics of heads that a step reports, in one list: where each begins, how ranks make one of it, where it ends.
#pragma once

#include <iterator>

#include "framework/comm/communicator.h"
#include "framework/nn/model.h"
#include "framework/train/step_report.h"

namespace keel::train {

struct HeadStatistic {
  const char* name;                       // of the array in telemetry.h5
  Tensor nn::ModelTelemetry::*own;        // of this rank; undefined where the model has none
  std::vector<float> StepReport::*whole;  // of the model
  comm::Reduction over_data;
  bool of_keys = false;     // [L, G], else [L, H]
  bool every_step = false;  // else on telemetry steps and of steps in trouble
};

inline constexpr HeadStatistic kHeadStatistics[] = {{.name = "largest_logit",
                                                     .own = &nn::ModelTelemetry::largest_logit,
                                                     .whole = &StepReport::largest_logit,
                                                     .over_data = comm::Reduction::max,
                                                     .every_step = true},
                                                    {.name = "logit_bound",
                                                     .own = &nn::ModelTelemetry::logit_bound,
                                                     .whole = &StepReport::logit_bound,
                                                     .over_data = comm::Reduction::max,
                                                     .every_step = true},
                                                    {.name = "entropy",
                                                     .own = &nn::ModelTelemetry::entropy,
                                                     .whole = &StepReport::entropy,
                                                     .over_data = comm::Reduction::sum},
                                                    {.name = "q_rms",
                                                     .own = &nn::ModelTelemetry::q_squares,
                                                     .whole = &StepReport::q_rms,
                                                     .over_data = comm::Reduction::sum},
                                                    {.name = "k_rms",
                                                     .own = &nn::ModelTelemetry::k_squares,
                                                     .whole = &StepReport::k_rms,
                                                     .over_data = comm::Reduction::sum,
                                                     .of_keys = true},
                                                    {.name = "q_gain",
                                                     .own = &nn::ModelTelemetry::q_gain,
                                                     .whole = &StepReport::q_gain,
                                                     .over_data = comm::Reduction::max},
                                                    {.name = "k_gain",
                                                     .own = &nn::ModelTelemetry::k_gain,
                                                     .whole = &StepReport::k_gain,
                                                     .over_data = comm::Reduction::max,
                                                     .of_keys = true},
                                                    {.name = "logit_scale",
                                                     .own = &nn::ModelTelemetry::logit_scale,
                                                     .whole = &StepReport::logit_scale,
                                                     .over_data = comm::Reduction::max}};

// Its place in the list.
consteval size_t head_statistic(Tensor nn::ModelTelemetry::*own) {
  size_t i = 0;
  while (kHeadStatistics[i].own != own) ++i;  // one that is not there does not compile
  return i;
}

}  // namespace keel::train
