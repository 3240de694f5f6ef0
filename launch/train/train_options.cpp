#include "launch/train/train_options.h"

#include "models/decoder/essence.h"

namespace keel {

train::TrainerOptions trainer_options(const config::RunConfig& run) {
  train::TrainerOptions options;
  options.total_steps = run.total_steps();
  options.schedule = {.kind = run.schedule.kind,
                      .peak = run.optimizer.lr,
                      .warmup_steps = run.schedule.warmup_steps,
                      .total_steps = options.total_steps,
                      .decay_steps = run.schedule.decay_steps.value_or(0),
                      .final_ratio = run.schedule.final_ratio};
  options.adamw = {run.optimizer.beta1, run.optimizer.beta2, run.optimizer.eps};
  options.weight_decay = run.optimizer.weight_decay;
  options.independent_decay = run.optimizer.decay == config::DecayKind::independent;
  options.clip_norm = run.optimizer.clip_norm.value_or(0);
  options.qk_clip_tau = run.stability.qk_clip ? run.stability.qk_clip->tau : 0;
  options.loss = {run.train.z_loss, run.train.label_smoothing};
  options.telemetry_every = run.telemetry.every.value_or(0);
  options.zero = run.parallel.zero;
  options.graphs = run.train.graphs;
  if (run.optimizer.rounding == config::RoundingKind::stochastic) options.rounding_seed = uint64_t(run.seed);
  return options;
}

void check_fallbacks(const FullConfig& config, int64_t ranks) {
  for (size_t i = 0; i < config.run.stability.fallbacks.size(); ++i) {
    const FullConfig next = with_fallback(config, int64_t(i) + 1);
    if (changes_since(stored_run(config.text()), next).empty())
      throw config.run.stability.fallbacks[i].error("changes nothing that a run can change on its way");
    check_qk_clip(next);
    if (ranks > 0) layout_for(next, ranks);
  }
}

void check_qk_clip(const FullConfig& config) {
  if (!config.run.stability.qk_clip) return;
  for (int64_t layer = 0; layer < config.model.layers; ++layer) {
    const bool normalised = config.model.qk_kind(layer) != ops::QkNormKind::none;
    const bool gains = config.model.attention.qk_norm.weight != nn::QkWeight::none;
    if (normalised && !gains && config.model.scale_kind(layer) == nn::LogitScaleKind::fixed)
      throw config.run.source["stability"]["qk_clip"].error(
          "layer {} has QK-Norm without gains and a fixed logit scale, so there is nothing to scale", layer);
  }
}

config::RunConfig stored_run(const std::string& text) {
  return config::read_run_config(config::parse(text, "the checkpoint's config"), "");
}

std::vector<std::string> changes_since(const config::RunConfig& then, const FullConfig& now) {
  std::vector<std::string> changes;
  auto add = [&](const std::vector<config::Difference>& differences) {
    for (const config::Difference& d : differences)
      changes.push_back(fmt::format("{}: {} -> {}", d.key, d.stored, d.now));
  };
  add(config::compare_on_resume(then, now.run, now.run.source));
  add(config::compare_on_resume(models::read_decoder_config(then.model), now.model, now.run.source["model"]));
  return changes;
}

std::string resume_word(const config::RunConfig& run) {
  if (const auto* path = std::get_if<std::string>(&run.checkpoint.resume)) return *path;
  return std::get<config::ResumeFrom>(run.checkpoint.resume) == config::ResumeFrom::none ? "none" : "auto";
}

void check_same_model(const std::string& stored, const std::string& name, const FullConfig& now) {
  const models::DecoderConfig then = parse_full_config(stored, name, {}).model;
  const std::vector<config::Difference> differences = models::differences_of_functions(then, now.model);
  if (differences.empty()) return;
  std::string others;
  for (size_t i = 1; i < differences.size(); ++i)
    others += fmt::format("{}model.{}", i == 1 ? "; differing as well: " : ", ", differences[i].key);
  const config::Difference& first = differences[0];
  throw now.run.source["model"].find(first.key).error(
      "the weights of {} are of another model: there it is {}, here {}{}", name, first.stored, first.now, others);
}

}  // namespace keel
