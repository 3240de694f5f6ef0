#include "framework/lab/cell_result.h"

#include <fmt/format.h>

#include <algorithm>

#include "framework/lab/statistics.h"

namespace keel::lab {
namespace {

// (1 + 2^-8) for the rounding of q and of k, and 1e-5 for the product.
double slack_of(bool bf16) {
  const double rounded = bf16 ? 1 + 1.0 / 256 : 1;
  return rounded * rounded * (1 + 1e-5) - 1;
}

std::string why_lost(const RunRecord& run, const CellResult& result) {
  if (const std::string reason = lost_by_steps(run); !reason.empty()) return reason;
  if (!(result.valid_loss <= result.bigram_loss))
    return fmt::format("the held-out loss {:.4f} is above a bigram's {:.4f}", result.valid_loss, result.bigram_loss);
  return "";
}

void judge_steps(const RunRecord& run, CellResult& result) {
  std::vector<double> losses, seconds, rates;
  for (const StepRecord& step : run.steps) {
    losses.push_back(step.loss);
    seconds.push_back(step.seconds);
    rates.push_back(step.tokens_per_second);
    result.skipped_steps += !step.accepted;
  }
  result.largest_logit = largest_logit(run);
  result.last_logit = run.steps.back().largest_logit;
  const size_t tenth = std::max<size_t>(1, losses.size() / 10);
  result.train_loss = estimate(std::span(losses).last(tenth)).mean;
  result.spikes = spike_scores(run.steps);
  result.seconds_per_step = median(seconds);
  std::ranges::sort(seconds);
  result.quick_seconds_per_step = seconds[seconds.size() / 20];
  result.tokens_per_second = median(rates);
}

// One head whose entropy is not a number makes both so.
void judge_entropy(const RunRecord& run, CellResult& result) {
  const HeadRecord* record = run.head("entropy");
  if (!record) return;
  const std::span<const float> heads = record->last_row();
  const std::vector<double> values(heads.begin(), heads.end());
  result.entropy = estimate(values).mean;
  result.least_entropy = std::isnan(*result.entropy) ? *result.entropy : *std::ranges::min_element(values);
}

// The largest of any layer; one that is not a number makes it so.
std::optional<double> last_of_layers(const RunRecord& run, const std::string& name) {
  const HeadRecord* record = run.head(name);
  if (!record) return std::nullopt;
  const std::span<const float> layers = record->last_row();
  const bool all = std::ranges::none_of(layers, [](float value) { return std::isnan(value); });
  return all ? double(std::ranges::max(layers)) : std::numeric_limits<double>::quiet_NaN();
}

// A lowered rate counts where the step is still part of the run: neither given up nor made again by a later process.
void judge_events(const RunRecord& run, CellResult& result) {
  std::vector<int64_t> lowered;
  for (const io::Json& event : run.events) {
    const std::string kind = event.value("event", "");
    const int64_t step = event.value("step", int64_t(0));
    if (kind == "memory") {  // the plan at each start, the peak at the end
      result.memory_bytes = event.value("bytes", result.memory_bytes);
      const double peak = io::number(event, "peak_resident_bytes");
      if (!std::isnan(peak)) result.peak_resident_bytes = std::max(result.peak_resident_bytes.value_or(0), peak);
    }
    if (kind == "start" || kind == "resume") std::erase_if(lowered, [&](int64_t each) { return each > step; });
    if (kind == "lower_lr") lowered.push_back(step);
    if (kind != "rolled_back" && kind != "fallback") continue;
    ++result.rollbacks;
    result.fallbacks += kind == "fallback";
    result.given_up_logit = std::max(result.given_up_logit, event.value("largest_logit", 0.0));
  }
  result.lowered_rates = int64_t(lowered.size());
}

template <class Result, class Visit>
void each_count(Result& r, Visit visit) {
  visit("steps", r.steps);
  visit("outside_bound", r.outside_bound);
  visit("skipped_steps", r.skipped_steps);
  visit("lowered_rates", r.lowered_rates);
  visit("rollbacks", r.rollbacks);
  visit("fallbacks", r.fallbacks);
}

// Every real number of a result with its name in JSON.
template <class Result, class Visit>
void each_number(Result& r, Visit visit) {
  visit("first_loss", r.first_loss);
  visit("valid_loss", r.valid_loss);
  visit("valid_nats_per_byte", r.valid_nats_per_byte);
  visit("train_loss", r.train_loss);
  visit("bigram_loss", r.bigram_loss);
  visit("largest_logit", r.largest_logit);
  visit("last_logit", r.last_logit);
  visit("given_up_logit", r.given_up_logit);
  visit("loss_spikes_7", r.spikes.loss_7);
  visit("loss_spikes_6", r.spikes.loss_6);
  visit("gradient_spikes_7", r.spikes.gradient_7);
  visit("gradient_spikes_6", r.spikes.gradient_6);
  visit("seconds_per_step", r.seconds_per_step);
  visit("tokens_per_second", r.tokens_per_second);
  visit("memory_bytes", r.memory_bytes);
}

// Those that not every cell has.
template <class Result, class Visit>
void each_optional(Result& r, Visit visit) {
  visit("bound_used", r.bound_used);
  visit("entropy", r.entropy);
  visit("least_entropy", r.least_entropy);
  visit("outlier_share", r.outlier_share);
  visit("kurtosis", r.kurtosis);
  visit("quick_seconds_per_step", r.quick_seconds_per_step);
  visit("peak_resident_bytes", r.peak_resident_bytes);
}

// Any other text than io::restored() knows is not a number either: an earlier version wrote "-nan".
double real(const io::Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

constexpr CellEnd kEnds[] = {CellEnd::done, CellEnd::lost, CellEnd::unstable};

}  // namespace

const char* name_of(CellEnd end) {
  constexpr const char* kNames[] = {"done", "lost", "unstable"};
  return kNames[size_t(end)];
}

std::string lost_by_steps(const RunRecord& run) {
  for (const StepRecord& step : run.steps) {
    if (!std::isfinite(step.loss)) return fmt::format("the loss of step {} is not finite", step.step);
    if (!std::isfinite(step.gradient_norm)) return fmt::format("the gradient of step {} is not finite", step.step);
    if (!(step.largest_logit <= kLostLogit))
      return fmt::format("the largest logit of step {} is {:.3g}", step.step, step.largest_logit);
  }
  return "";
}

CellResult judge(const RunRecord& run, double bigram_loss, bool bf16) {
  if (run.steps.empty() || run.evaluations.empty())
    throw input_error("{}: the run has no steps or no evaluation to judge it by", run.directory);
  if (run.evaluations.front().step != 0)
    throw input_error(
        "{}: there is no evaluation before the first step: eval.first is false, or an earlier version "
        "left it out",
        run.directory);
  CellResult result{.steps = run.steps.back().step,
                    .first_loss = run.evaluations.front().loss,
                    .valid_loss = run.evaluations.back().loss,
                    .valid_nats_per_byte = run.evaluations.back().nats_per_byte,
                    .bigram_loss = bigram_loss};
  judge_steps(run, result);
  // Ended by a loss or gradient that is not finite, after its last evaluation.
  const StepRecord& last = run.steps.back();
  if (run.evaluations.back().step < last.step) {
    if (std::isfinite(last.loss) && std::isfinite(last.gradient_norm))
      throw input_error("{}: the last evaluation is of step {}, the run ended at {}", run.directory,
                        run.evaluations.back().step, last.step);
    result.valid_loss = result.valid_nats_per_byte = std::numeric_limits<double>::quiet_NaN();
  }
  result.bound_used = bound_used(run);
  for (const StepRecord& step : run.steps) result.outside_bound += step.bound_used > 1 + slack_of(bf16);
  result.lost = why_lost(run, result);
  judge_entropy(run, result);
  result.outlier_share = last_of_layers(run, "stream_outliers");
  result.kurtosis = last_of_layers(run, "stream_kurtosis");
  judge_events(run, result);
  return result;
}

io::Json to_json(const CellResult& result) {
  io::Json json = {{"end", name_of(result.end)}, {"reason", result.reason}, {"lost", result.lost}};
  each_count(result, [&](const char* name, int64_t value) { json[name] = value; });
  each_number(result, [&](const char* name, double value) { json[name] = value; });
  each_optional(result, [&](const char* name, const std::optional<double>& value) {
    json[name] = value ? io::Json(*value) : io::Json();
  });
  return io::storable(std::move(json));
}

CellResult result_from_json(const io::Json& stored) {
  const io::Json json = io::restored(stored);
  CellResult result{.reason = json.at("reason")};
  for (CellEnd end : kEnds)
    if (json.at("end") == name_of(end)) result.end = end;
  each_count(result, [&](const char* name, int64_t& value) { value = json.at(name); });
  each_number(result, [&](const char* name, double& value) { value = real(json.at(name)); });
  // Results of earlier versions lack some of them.
  each_optional(result, [&](const char* name, std::optional<double>& value) {
    if (const auto found = json.find(name); found != json.end() && !found->is_null()) value = real(*found);
  });
  result.lost = json.at("lost");
  return result;
}

}  // namespace keel::lab
