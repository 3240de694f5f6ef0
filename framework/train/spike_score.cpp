#include "framework/train/spike_score.h"

#include <fmt/format.h>

#include <cmath>

namespace keel::train {

// From the mean in either direction, against a deviation without a floor: the published definition.
void SpikeScoreHook::Score::add(double value) {
  const SpikeScore score = recent.judge(value);
  const bool far = score.history >= recent.options().window && std::abs(value - score.mean) >= sigmas * score.deviation;
  spikes += !std::isfinite(value) || (far && score.deviation > 0);
  recent.accept(value);
}

Verdict SpikeScoreHook::after_step(const StepReport& report, const Verdict&, const Progress&) {
  ++values_;
  for (Score* score : {&loss_.wide, &loss_.narrow}) score->add(report.loss);
  for (Score* score : {&gradient_.wide, &gradient_.narrow}) score->add(report.gradient_norm);
  return {};
}

io::Json SpikeScoreHook::scores() const {
  return {{"values", values_},
          {"loss_7_of_1000", loss_.wide_share(values_)},
          {"loss_6_of_128", loss_.narrow_share(values_)},
          {"gradient_norm_7_of_1000", gradient_.wide_share(values_)},
          {"gradient_norm_6_of_128", gradient_.narrow_share(values_)}};
}

std::string SpikeScoreHook::text() const {
  return fmt::format("loss {:.2f}%, gradient norm {:.2f}% (7 deviations of 1,000 steps)",
                     100 * loss_.wide_share(values_), 100 * gradient_.wide_share(values_));
}

nlohmann::json SpikeScoreHook::state() const {
  auto of = [](const Scores& scores) {
    return nlohmann::json{
        {"recent", scores.wide.recent.history()}, {"wide", scores.wide.spikes}, {"narrow", scores.narrow.spikes}};
  };
  return {{"values", values_}, {"loss", of(loss_)}, {"gradient_norm", of(gradient_)}};
}

// The narrow window is the end of the wide one.
void SpikeScoreHook::restore(const nlohmann::json& state) {
  auto into = [](Scores& scores, const nlohmann::json& from) {
    const auto recent = from.at("recent").get<std::vector<double>>();
    scores.wide.recent.restore(recent);
    scores.narrow.recent.restore(recent);
    scores.wide.spikes = from.at("wide").get<int64_t>();
    scores.narrow.spikes = from.at("narrow").get<int64_t>();
  };
  values_ = state.at("values").get<int64_t>();
  into(loss_, state.at("loss"));
  into(gradient_, state.at("gradient_norm"));
}

}  // namespace keel::train
