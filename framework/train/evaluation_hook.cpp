#include "framework/train/evaluation_hook.h"

#include <array>

#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/base/trace.h"

namespace keel::train {

void EvaluationHook::start(const Progress& progress) {
  if ((times_.first && progress.step == 0) || left_out_ == progress.step) evaluate(progress.step, Needed::yes);
}

Verdict EvaluationHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  const bool due = report.step == times_.total_steps || (times_.every > 0 && report.step % times_.every == 0);
  finite_ = report.finite();
  loss_.reset();
  if (due) evaluate(report.step, Needed::no);
  if (left_out_ != report.step) return {};
  return {Action::stop_saved, "stopped early, before the evaluation of this step (train.stop_after or a signal)"};
}

void EvaluationHook::finish(const Progress& progress, const Ending& ending) {
  if (ending.outcome == Outcome::unstable && finite_ && !loss_) evaluate(progress.step, Needed::yes);
}

void EvaluationHook::evaluate(int64_t step, Needed needed) {
  const Span span("evaluation", step);
  left_out_ = -1;
  const auto evaluated =
      evaluation_.run(model_, mesh_, needed == Needed::yes ? std::function<bool()>() : times_.interrupted);
  if (!evaluated) {
    left_out_ = step;
    return log::info("step {}: the evaluation is left out, since the run is to end", step);
  }
  const EvaluationResult& result = *evaluated;
  loss_ = result.loss;
  const std::string per_byte =
      result.nats_per_byte > 0 ? fmt::format(", {:.4f} nats per byte", result.nats_per_byte) : "";
  log::info("step {}: held-out loss {:.4f}{} ({} tokens, {})", step, result.loss, per_byte,
            human_count(double(result.counted_tokens)), human_seconds(result.seconds));
  files_.metrics_line({{"step", step}, {"valid_loss", result.loss}, {"valid_nats_per_byte", result.nats_per_byte}});
  files_.scalars(step, std::array<io::Scalar, 1>{{{"valid/loss", float(result.loss)}}});
}

}  // namespace keel::train
