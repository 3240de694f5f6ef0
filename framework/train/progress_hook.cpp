#include "framework/train/progress_hook.h"

#include <cstdio>

#include "framework/base/log.h"
#include "framework/base/text.h"

namespace keel::train {

void ProgressHook::start(const Progress&) {
  steps_.lap();
}

Verdict ProgressHook::after_step(const StepReport& report, const Verdict& verdict, const Progress&) {
  if (!options_.speaker) return {};
  const double seconds = steps_.lap();
  seconds_per_step_ = seconds_per_step_ == 0 ? seconds : 0.9 * seconds_per_step_ + 0.1 * seconds;
  if (verdict.action != Action::proceed) {
    if (line_open_) std::fputc('\n', stderr);
    line_open_ = false;
    const char* outcome = !report.updated                      ? "left the weights as they were"
                          : verdict.action == Action::lower_lr ? "lowers the learning rate of the next ones"
                                                               : "was taken, and is in trouble";
    log::warning("step {} {}: {}", report.step, outcome, verdict.reason);
    return {};
  }
  if (options_.terminal) {
    const std::string text = fmt::format("\r\033[K{}", line(report));
    std::fwrite(text.data(), 1, text.size(), stderr);
    line_open_ = true;
  } else if (report.step == 1 || report.step % options_.every == 0 || report.step == options_.total_steps) {
    log::info("{}", line(report));
  }
  return {};
}

std::string ProgressHook::line(const StepReport& report) const {
  return fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  |g| {:.3f}  max logit {:.1f}  {} tok/s  MFU {:.0f}%  ETA {}",
                     report.step, options_.total_steps, report.loss, report.lr, report.gradient_norm, report.largest(),
                     human_count(options_.throughput.tokens_per_second(report)),
                     100 * options_.throughput.mfu_causal(report),
                     human_seconds(seconds_per_step_ * double(options_.total_steps - report.step)));
}

void ProgressHook::finish(const Progress&, const Ending&) {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

}  // namespace keel::train
