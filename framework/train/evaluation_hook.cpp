#include "framework/train/evaluation_hook.h"

#include <array>

#include "framework/base/log.h"
#include "framework/base/text.h"

namespace keel::train {

Verdict EvaluationHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  const bool due = report.step == total_steps_ || (every_ > 0 && report.step % every_ == 0);
  if (!due) return {};
  const EvaluationResult result = evaluation_.run(model_, mesh_);
  const std::string per_byte =
      result.nats_per_byte > 0 ? fmt::format(", {:.4f} nats per byte", result.nats_per_byte) : "";
  log::info("step {}: held-out loss {:.4f}{} ({} tokens, {})", report.step, result.loss, per_byte,
            human_count(double(result.counted_tokens)), human_seconds(result.seconds));
  files_.metrics_line(
      {{"step", report.step}, {"valid_loss", result.loss}, {"valid_nats_per_byte", result.nats_per_byte}});
  files_.scalars(report.step, std::array<io::Scalar, 1>{{{"valid/loss", float(result.loss)}}});
  return {};
}

}  // namespace keel::train
