#include "launch/train/run_endings.h"

#include "framework/base/log.h"
#include "framework/lab/cell_result.h"

namespace keel {

void tell_rollback(const RunTold& run, const checkpoints::Rollback& rollback, const train::TroubledSteps& troubled,
                   int64_t fallbacks_taken) {
  const std::string to = rollback.files.empty() ? "the beginning" : rollback.files.back();
  io::Json fields = {{"step", troubled.last_step},  {"first_step", troubled.first_step},
                     {"reason", troubled.reason},   {"to", to},
                     {"rollbacks", rollback.count}, {"fallbacks_taken", fallbacks_taken}};
  // The lines of these steps go with them.
  fields["largest_logit"] = lab::largest_logit(lab::read_steps(run.directory), rollback.step);
  if (rollback.left_out) fields["left_out"] = {rollback.left_out->begin, rollback.left_out->end};
  fields["lasting"] = true;
  run.note(rollback.next_fallback ? "fallback" : "rolled_back", fields);
  log::warning("steps {} to {} are given up ({}): going back to {}{}{}", troubled.first_step, troubled.last_step,
               troubled.reason, to, rollback.next_fallback ? fmt::format(", with fallback {}", fallbacks_taken) : "",
               rollback.left_out
                   ? fmt::format(", without samples {} to {}", rollback.left_out->begin, rollback.left_out->end - 1)
                   : "");
}

void tell_spikes(const RunTold& run) {
  const lab::RunRecord record = lab::read_steps(run.directory);
  const lab::SpikeScores scores = lab::spike_scores(record.steps);
  log::info("spike score: loss {}, gradient norm {} (7 deviations of 1,000 steps)", lab::text_of_share(scores.loss_7),
            lab::text_of_share(scores.gradient_7));
  run.note("spike_score", {{"values", record.steps.size()},
                           {"loss_7_of_1000", scores.loss_7},
                           {"loss_6_of_128", scores.loss_6},
                           {"gradient_norm_7_of_1000", scores.gradient_7},
                           {"gradient_norm_6_of_128", scores.gradient_6}});
}

}  // namespace keel
