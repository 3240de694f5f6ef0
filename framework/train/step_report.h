// What one step is told and observed, the same on every rank, and what hooks answer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "framework/data/sampler.h"

namespace keel::train {

// Above these a step's update is not made; values that are not finite never are. Decided where the gradients lie
// (ops/update/update_gate.h), so they must be known before the step.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();
  double largest_logit = std::numeric_limits<double>::infinity();  // of any head

  // As the gate takes them: [3] fp64.
  void put(double* limits) const { std::ranges::copy(std::array{loss, gradient_norm, largest_logit}, limits); }
};

enum class Phase { data, forward, backward, reduction, update };

// Where the host's seconds of a step went. A GPU works on until `update` ends, with the wait for all of it.
struct PhaseSeconds {
  double data = 0;
  double forward = 0;  // with the loss and its gradient
  double backward = 0;
  double reduction = 0;
  double update = 0;
  double& of(Phase phase) {
    double* const all[] = {&data, &forward, &backward, &reduction, &update};
    return *all[size_t(phase)];
  }
  double total() const { return data + forward + backward + reduction + update; }
};

struct StepReport {
  int64_t step = 0;     // this attempt, counted from 1
  int64_t updates = 0;  // accepted ones so far, this one counted where it was
  double lr = 0;
  double loss = 0;                           // mean over counted tokens, without the z-loss
  double z_loss = 0;                         // mean z * lse^2
  double gradient_norm = 0;                  // before clipping
  bool updated = true;                       // false: the weights are what they were before the step
  double update_norm = 0;                    // of the change of the weights; 0 where the step was skipped
  std::vector<double> layer_update_norms;    // [L]: the same of each layer's matrices, before QK-clip
  int64_t tokens = 0;                        // of the step, all ranks
  int64_t counted_tokens = 0;                // with a target
  int64_t tokens_consumed = 0;               // of the run
  int64_t first_sample = 0, end_sample = 0;  // global sample indices that the step drew from
  std::vector<data::SampleId> samples;       // of the step, all ranks, in the order of its sequences
  bool stop_requested = false;               // by a signal or a time limit of any rank
  PhaseSeconds seconds;                      // this rank's
  std::string not_finite;                    // where a loss or gradient that is not finite came from, else empty

  // Per layer and head of the whole model, [L, H] row-major.
  int64_t layers = 0, heads = 0;
  bool telemetry = false;  // whether what telemetry steps show is there
  std::vector<float> largest_logit;
  std::vector<float>
      logit_bound;  // ops/qk_norm/head_gains.h, of the weights that the step used; empty where there is none
  // On telemetry steps and, after their verdict, of steps in trouble (TrainingStep::look_closer), else empty; what is
  // of keys [L, G of the whole model].
  std::vector<float> entropy, q_rms, k_rms;
  std::vector<float> q_gain, k_gain, logit_scale;  // as logit_bound

  bool finite() const { return std::isfinite(loss) && std::isfinite(gradient_norm); }
  // The largest share of its bound that a head's logits reached; 0 without bounds.
  double bound_used() const {
    double used = 0;
    for (size_t head = 0; head < logit_bound.size(); ++head)
      if (std::isfinite(logit_bound[head])) used = std::max(used, double(largest_logit[head]) / logit_bound[head]);
    return used;
  }
  float largest() const {
    float largest = 0;
    for (float value : largest_logit) largest = value > largest || value != value ? value : largest;
    return largest;
  }
};

// The most severe answer of all hooks wins. lower_lr leaves the step out, too, unless its update had been made; the
// hook that says so has lowered the rate of the steps to come (Hook::lr_factor). From stop_saved on the loop ends;
// roll_back lets its caller go back and begin again, and is severer, since the weights at hand are not to be saved.
enum class Action { proceed, skip, lower_lr, stop_saved, roll_back, stop_unstable };

// "skip", as in events and metrics.
const char* name_of(Action action);

struct Verdict {
  Action action = Action::proceed;
  std::string reason;  // "gradient norm 812.4 is 9.1 deviations above the mean of 128 steps"
  bool lost = false;   // with stop_unstable: for what came of the run (train/lost_hook.h), not for trouble at hand
};

enum class Outcome { done, roll_back, unstable, saved_early };

// How the loop ended.
struct Ending {
  Outcome outcome = Outcome::done;
  std::string reason;
  bool lost = false;  // as in the verdict
};

}  // namespace keel::train
