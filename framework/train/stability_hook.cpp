#include "framework/train/stability_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace keel::train {
namespace {

// Whose text it was: [source, sample of it], as telemetry's largest_logit_place has them.
io::Json first_samples(const StepReport& report) {
  constexpr size_t kMost = 64;
  io::Json samples = io::Json::array();
  for (const data::SampleId& id : std::span(report.samples).first(std::min(kMost, report.samples.size())))
    samples.push_back({id.source, id.sample});
  return samples;
}

io::Json fields_of(const StepReport& report, const Trouble& trouble) {
  io::Json fields = {{"step", report.step},    {"signal", trouble.signal}, {"reason", trouble.reason},
                     {"value", trouble.value}, {"mean", trouble.mean},     {"threshold", trouble.threshold}};
  if (trouble.layer >= 0) fields.update({{"layer", trouble.layer}, {"head", trouble.head}});
  fields.update({{"loss", report.loss},
                 {"gradient_norm", report.gradient_norm},
                 {"update_norm", report.update_norm},
                 {"largest_logit", report.largest()},
                 {"lr", report.lr},
                 {"updated", report.updated},
                 {"first_sample", report.first_sample},
                 {"end_sample", report.end_sample},
                 {"samples", first_samples(report)}});
  return fields;
}

// Only what was on can be used up; where an update was made, no skip would have helped.
std::string advice(const TroubledSteps& troubled, const config::StabilityConfig& options, Grade grade) {
  return fmt::format(
      "; {}{}no rollback or fallback is left: lower optimizer.lr, turn on QK-Norm, or look at the data of samples "
      "{} to {}",
      grade == Grade::heavy && options.max_skips > 0 ? "stability.max_skips is used up, " : "",
      options.lower_lr.times > 0 ? "stability.lower_lr is used up, " : "", troubled.first_sample,
      troubled.end_sample - 1);
}

}  // namespace

Verdict StabilityHook::climb(const StepReport& report, const Trouble& trouble) {
  if (ladder_.first_step() == 0)
    troubled_ = {report.step, report.step, report.first_sample, report.end_sample, trouble.reason};
  troubled_.last_step = report.step;
  troubled_.end_sample = report.end_sample;
  const std::string before = ladder_.history();  // a rung that is taken clears what led to it
  Verdict verdict{ladder_.climb(report.step, trouble.grade), trouble.reason};
  if (verdict.action == Action::proceed) return {};
  if (verdict.action != Action::skip) verdict.reason += ", after " + before;
  if (verdict.action == Action::stop_unstable) verdict.reason += advice(troubled_, ladder_.options(), trouble.grade);
  io::Json fields = fields_of(report, trouble);
  fields["history"] = before;
  if (verdict.action >= Action::roll_back) fields["lasting"] = true;  // resumes from before it keep the line
  if (note_) note_(name_of(verdict.action), fields);
  return verdict;
}

void StabilityHook::limit(StepLimits& limits) const {
  const StepLimits own = signals_.limits();
  limits.loss = std::min(limits.loss, own.loss);
  limits.largest_logit = std::min(limits.largest_logit, own.largest_logit);
  if (ladder_.skips_light()) limits.gradient_norm = std::min(limits.gradient_norm, own.gradient_norm);
}

Verdict StabilityHook::judge(const StepReport& report) {
  const auto trouble = signals_.above_limits(report);
  return trouble ? climb(report, *trouble) : Verdict();
}

Verdict StabilityHook::judge_update(const StepReport& report) {
  if (const auto trouble = signals_.of_update(report)) return climb(report, *trouble);
  signals_.accept(report);
  ladder_.accept(report.step);
  return {};
}

nlohmann::json StabilityHook::state() const {
  return {{"signals", signals_.state()},
          {"ladder", ladder_.state()},
          {"first_sample", troubled_.first_sample},
          {"reason", troubled_.reason}};
}

void StabilityHook::restore(const nlohmann::json& state) {
  signals_.restore(state.at("signals"));
  ladder_.restore(state.at("ladder"));
  troubled_ = {.first_step = ladder_.first_step(),
               .first_sample = state.at("first_sample").get<int64_t>(),
               .reason = state.value("reason", "")};  // older files have none
}

}  // namespace keel::train
