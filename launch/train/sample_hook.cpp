#include "launch/train/sample_hook.h"

#include <algorithm>
#include <cmath>

#include "framework/base/log.h"

namespace keel {

void SampleHook::start(const train::Progress& progress) {
  if (!options_.speaker) return;
  io::truncate_after(options_.path, progress.step > 0 ? progress.step : -1);
  file_.emplace(options_.path);
}

train::Verdict SampleHook::after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) {
  // A model whose loss is not finite has no next token to draw.
  if (!evaluation_.loss() || !std::isfinite(*evaluation_.loss())) return {};
  for (const std::string& prompt : options_.prompts) {
    std::string text;
    try {
      text = write_on(writer_, prompt, {.tokens = options_.tokens, .seed = options_.seed});
    } catch (const LogitsNotFinite& error) {  // on all ranks alike; whether the run is in trouble is for others to say
      log::warning("step {}: no text after '{}': {}", report.step, prompt, error.what());
      continue;
    }
    std::string line = prompt + text;
    std::ranges::replace_if(
        line, [](unsigned char c) { return c < ' '; }, ' ');
    log::info("step {}: {}", report.step, line);
    if (file_) file_->write({{"step", report.step}, {"prompt", prompt}, {"text", text}});
  }
  return {};
}

}  // namespace keel
