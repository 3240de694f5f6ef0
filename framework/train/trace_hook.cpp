#include "framework/train/trace_hook.h"

#include "framework/base/log.h"
#include "framework/base/trace.h"
#include "framework/io/files.h"

namespace keel::train {

Verdict TraceHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  if (recording_ && report.step == options_.from + options_.steps - 1) write(report.step);
  start_after(report.step);
  return {};
}

void TraceHook::finish(const Progress& progress, const Ending&) {
  if (recording_) write(progress.step);
}

void TraceHook::start_after(int64_t step) {
  if (options_.steps == 0 || step + 1 != options_.from) return;
  trace::name_thread("training");
  trace::start();
  recording_ = true;
}

// A trace that cannot be kept is no reason to end a run.
void TraceHook::write(int64_t last_step) {
  recording_ = false;
  const std::string path = fmt::format("{}/step-{}-rank-{}.json", options_.directory, options_.from, options_.rank);
  const std::string json = trace::stop(options_.rank);
  try {
    io::create_directories(options_.directory);
    io::write_file(path, json);
  } catch (const Error& error) {
    return log::warning("the trace of steps {} to {} is lost: {}", options_.from, last_step, error.what());
  }
  log::info("traced steps {} to {}: {} (one per rank; open it in ui.perfetto.dev)", options_.from, last_step, path);
}

}  // namespace keel::train
