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
  for (const StepRecord& step : run.steps) {
    if (!std::isfinite(step.loss)) return fmt::format("the loss of step {} is not finite", step.step);
    if (!std::isfinite(step.gradient_norm)) return fmt::format("the gradient of step {} is not finite", step.step);
    if (!(step.largest_logit <= kLostLogit))
      return fmt::format("the largest logit of step {} is {:.3g}", step.step, step.largest_logit);
  }
  if (!(result.valid_loss <= result.bigram_loss))
    return fmt::format("the held-out loss {:.4f} is above a bigram's {:.4f}", result.valid_loss, result.bigram_loss);
  return "";
}

void judge_steps(const RunRecord& run, CellResult& result) {
  std::vector<double> losses, gradients, seconds, rates;
  for (const StepRecord& step : run.steps) {
    losses.push_back(step.loss);
    gradients.push_back(step.gradient_norm);
    seconds.push_back(step.seconds);
    rates.push_back(step.tokens_per_second);
    result.skipped_steps += !step.accepted;
    const double logit = std::isnan(step.largest_logit) ? std::numeric_limits<double>::infinity() : step.largest_logit;
    result.largest_logit = std::max(result.largest_logit, logit);
  }
  result.last_logit = run.steps.back().largest_logit;
  const size_t tenth = std::max<size_t>(1, losses.size() / 10);
  result.train_loss = estimate(std::span(losses).last(tenth)).mean;
  result.loss_spikes_7 = spike_score(losses, {7, 1000});
  result.loss_spikes_6 = spike_score(losses, {6, 128});
  result.gradient_spikes_7 = spike_score(gradients, {7, 1000});
  result.gradient_spikes_6 = spike_score(gradients, {6, 128});
  result.seconds_per_step = median(seconds);
  result.tokens_per_second = median(rates);
}

// Every number of a result with its name in JSON.
template <class Result, class Visit>
void each_number(Result& r, Visit visit) {
  visit("first_loss", r.first_loss);
  visit("valid_loss", r.valid_loss);
  visit("valid_nats_per_byte", r.valid_nats_per_byte);
  visit("train_loss", r.train_loss);
  visit("bigram_loss", r.bigram_loss);
  visit("largest_logit", r.largest_logit);
  visit("last_logit", r.last_logit);
  visit("loss_spikes_7", r.loss_spikes_7);
  visit("loss_spikes_6", r.loss_spikes_6);
  visit("gradient_spikes_7", r.gradient_spikes_7);
  visit("gradient_spikes_6", r.gradient_spikes_6);
  visit("seconds_per_step", r.seconds_per_step);
  visit("tokens_per_second", r.tokens_per_second);
  visit("memory_bytes", r.memory_bytes);
}

constexpr CellEnd kEnds[] = {CellEnd::done, CellEnd::lost, CellEnd::unstable, CellEnd::failed};

}  // namespace

const char* name_of(CellEnd end) {
  switch (end) {
    case CellEnd::done:
      return "done";
    case CellEnd::lost:
      return "lost";
    case CellEnd::unstable:
      return "unstable";
    case CellEnd::failed:
      return "failed";
  }
  return "?";
}

CellResult judge(const RunRecord& run, double bigram_loss, bool bf16) {
  if (run.steps.empty() || run.evaluations.empty())
    throw input_error("{}: the run has no steps or no evaluation to judge it by", run.directory);
  CellResult result{.steps = run.steps.back().step,
                    .first_loss = run.evaluations.front().loss,
                    .valid_loss = run.evaluations.back().loss,
                    .valid_nats_per_byte = run.evaluations.back().nats_per_byte,
                    .bigram_loss = bigram_loss};
  judge_steps(run, result);
  // Ended by a loss or gradient that is not finite, after its last evaluation.
  const StepRecord& last = run.steps.back();
  if (run.evaluations.back().step < last.step && !(std::isfinite(last.loss) && std::isfinite(last.gradient_norm)))
    result.valid_loss = result.valid_nats_per_byte = std::numeric_limits<double>::quiet_NaN();
  result.bound_used = bound_used(run);
  for (const StepRecord& step : run.steps) result.outside_bound += step.bound_used > 1 + slack_of(bf16);
  result.lost = why_lost(run, result);
  for (const io::Json& event : run.events)
    if (event.value("event", "") == "memory") result.memory_bytes = event.value("bytes", 0.0);
  return result;
}

io::Json to_json(const CellResult& result) {
  io::Json json = {{"end", name_of(result.end)}, {"reason", result.reason}, {"steps", result.steps}};
  // JSON has no NaN and no infinity.
  each_number(result, [&](const char* name, double value) {
    json[name] = std::isfinite(value) ? io::Json(value) : io::Json(fmt::format("{}", value));
  });
  json["bound_used"] = result.bound_used ? io::Json(*result.bound_used) : io::Json();
  json["outside_bound"] = result.outside_bound;
  json["lost"] = result.lost;
  json["skipped_steps"] = result.skipped_steps;
  return json;
}

CellResult result_from_json(const io::Json& json) {
  CellResult result{.reason = json.at("reason"), .steps = json.at("steps")};
  for (CellEnd end : kEnds)
    if (json.at("end") == name_of(end)) result.end = end;
  each_number(result, [&](const char* name, double& value) {
    const io::Json& stored = json.at(name);
    value = stored.is_number() ? stored.get<double>() : std::stod(stored.get<std::string>());
  });
  if (json.at("bound_used").is_number()) result.bound_used = json.at("bound_used").get<double>();
  result.outside_bound = json.at("outside_bound");
  result.lost = json.at("lost");
  result.skipped_steps = json.at("skipped_steps");
  return result;
}

}  // namespace keel::lab
