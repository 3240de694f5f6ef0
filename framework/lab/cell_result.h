// What came out of one cell that trained: judged once, when the cell has ended, and kept in its folder as result.json.
// A cell that has this file is finished.
#pragma once

#include "framework/lab/spike_scores.h"

namespace keel::lab {

inline constexpr double kLostLogit = 1e4;  // QKNORM.md section 6: a run whose logits pass it is lost

// How a cell ended.
enum class CellEnd { done, lost, unstable };  // lost: stopped early by stop.lost
const char* name_of(CellEnd end);

struct CellResult {
  CellEnd end = CellEnd::done;
  std::string reason;  // why it did not come to its last step
  int64_t steps = 0;
  double first_loss = 0;  // l0: held-out loss before the first step
  double valid_loss = 0;  // at the end, nats per token
  double valid_nats_per_byte = 0;
  double train_loss = 0;                     // mean of the last tenth of the steps
  double bigram_loss = 0;                    // of the training tokens, on the same held-out text
  double largest_logit = 0, last_logit = 0;  // over all steps, layers and heads; in the last step
  std::optional<double> bound_used;          // largest share of QK-Norm's bound; nothing without QK-Norm
  // Of attention at the last telemetry step, nats: mean over layers and heads, and the smallest head's; nothing without
  // telemetry.
  std::optional<double> entropy, least_entropy;
  // Of the residual stream at the last telemetry step, the largest of any layer: the share of |x| > 6, and kurtosis.
  std::optional<double> outlier_share, kurtosis;
  int64_t outside_bound = 0;  // steps above it, rounding allowed for: a fault of this program
  std::string lost;           // why it is lost (QKNORM.md section 6); empty where it is not
  // What `stability` did to it; a rollback with a fallback is both.
  int64_t skipped_steps = 0, lowered_rates = 0, rollbacks = 0, fallbacks = 0;
  double given_up_logit = 0;  // largest logit of the steps that rollbacks gave up, which largest_logit leaves out
  SpikeScores spikes;
  // Not the same from run to run.
  double seconds_per_step = 0, tokens_per_second = 0;  // medians
  // Of the fastest twentieth of the steps: what else the machine did slowed down the others more.
  std::optional<double> quick_seconds_per_step;
  double memory_bytes = 0;                    // planned, of rank 0
  std::optional<double> peak_resident_bytes;  // what its process held at most; nothing where it did not say
};

// `run` with heads, for the entropy. `bf16`: how much rounding its logits may carry.
CellResult judge(const RunRecord& run, double bigram_loss, bool bf16);

// The part of why a cell is lost that needs its steps alone; "" where they give no reason.
std::string lost_by_steps(const RunRecord& run);

io::Json to_json(const CellResult& result);
CellResult result_from_json(const io::Json& stored);

}  // namespace keel::lab
