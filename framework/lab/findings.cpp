// Two sentences from the numbers of an ablation, by fixed rules: no adjective that a number does not carry.
#include "framework/lab/findings.h"

#include <algorithm>

#include "framework/lab/comparison.h"

namespace keel::lab {
namespace {

// What the finished cells of one line have in common.
struct Tally {
  size_t cells = 0, lost = 0;
  double largest_logit = 0, given_up_logit = 0;
  std::optional<double> bound_used;
  int64_t outside_bound = 0, lowered_rates = 0, rollbacks = 0, fallbacks = 0;
};

Tally tally(const Line& line) {
  Tally tally;
  for (const auto& seeds : line.results)
    for (const CellResult* result : seeds) {
      if (!result) continue;
      ++tally.cells;
      tally.lost += !result->lost.empty();
      tally.largest_logit = std::max(tally.largest_logit, result->largest_logit);
      tally.given_up_logit = std::max(tally.given_up_logit, result->given_up_logit);
      tally.outside_bound += result->outside_bound;
      tally.lowered_rates += result->lowered_rates;
      tally.rollbacks += result->rollbacks;
      tally.fallbacks += result->fallbacks;
      if (result->bound_used) tally.bound_used = std::max(tally.bound_used.value_or(0), *result->bound_used);
    }
  return tally;
}

std::string sentence_of(const Comparison& comparison, size_t index) {
  const Line& line = comparison.lines[index];
  const Tally t = tally(line);
  std::string text = fmt::format("{}{}: largest logit {:.3g}", line.label, line.baseline == index ? " (baseline)" : "",
                                 t.largest_logit);
  if (t.bound_used)
    text += t.outside_bound == 0 ? fmt::format(" (at most {:.0f}% of its bound)", 100 * *t.bound_used)
                                 : fmt::format(" (above its bound {} times: a fault)", t.outside_bound);
  text += fmt::format(", {} of {} cells lost", t.lost, t.cells);
  if (t.lowered_rates > 0) text += fmt::format(", learning rate lowered {} times", t.lowered_rates);
  if (t.rollbacks > 0)
    text += fmt::format(", rolled back {} times ({} with a fallback) from logits up to {:.3g}", t.rollbacks,
                        t.fallbacks, t.given_up_logit);
  const std::vector<double> sensitivity = sensitivities(line);
  if (comparison.has_sensitivity && !sensitivity.empty())
    text += fmt::format(", sensitivity {}", text_of(estimate(sensitivity), "{:.3f}"));
  return text;
}

// "1e-3 to 3e-1", "" without an axis.
std::string range_of(const Comparison& comparison) {
  if (comparison.x_key.empty()) return "";
  if (comparison.x.size() == 1) return fmt::format(" at {} {}", comparison.x_key, comparison.x[0]);
  return fmt::format(" over {} from {} to {}", comparison.x_key, comparison.x.front(), comparison.x.back());
}

// A quantity of a line, per seed.
using Quantity = std::vector<double> (*)(const Line&, std::vector<size_t>*);

// Lines whose difference to the baseline lies beyond its interval, with the numbers, and those whose interval holds 0.
struct Differences {
  std::vector<std::string> settled, open;
};

Differences differences(const Comparison& comparison, Quantity quantity) {
  Differences result;
  for (size_t i = 0; i < comparison.lines.size(); ++i) {
    const Line& line = comparison.lines[i];
    if (line.baseline == i) continue;
    const Estimate e = difference(line, comparison.lines[line.baseline], quantity);
    if (!e.half_width) continue;
    if (std::abs(e.mean) > *e.half_width)
      result.settled.push_back(fmt::format("{} {:+.3f} ± {:.3f}", line.label, e.mean, *e.half_width));
    else
      result.open.push_back(line.label);
  }
  return result;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}

// What no interval settles, what moves together, what has not ended.
std::vector<std::string> limits_of(const Ablation& ablation, const Comparison& comparison) {
  const Plan& plan = ablation.plan;
  std::vector<std::string> limits;
  const std::vector<std::string> open = differences(comparison, best_losses).open;
  if (plan.seeds.size() < kLeastForInterval)
    limits.push_back("with fewer than 3 seeds no interval can be given, so small differences in loss may be chance");
  else if (!open.empty())
    limits.push_back(fmt::format("that {} {} from the baseline in its best loss: the interval holds 0",
                                 joined(open, ", "), open.size() == 1 ? "differs" : "differ"));
  for (const Arm& arm : plan.arms)
    if (arm.differences.size() > 1)
      limits.push_back(
          fmt::format("which of its {} changed keys makes {} what it is", arm.differences.size(), arm.name));
  const size_t failed = ablation.failed(), waiting = plan.cells.size() - ablation.finished() - failed;
  if (failed > 0) limits.push_back(fmt::format("{} cells failed", failed));
  if (waiting > 0) limits.push_back(fmt::format("{} cells have not ended", waiting));
  limits.push_back("anything about other sizes, data or longer runs");
  return limits;
}

}  // namespace

Findings findings(const Ablation& ablation) {
  const Comparison comparison = compare(ablation);
  const size_t seeds = ablation.plan.seeds.size();
  std::vector<std::string> parts;
  for (size_t i = 0; i < comparison.lines.size(); ++i) parts.push_back(sentence_of(comparison, i));
  const std::pair<const char*, Quantity> quantities[] = {{"best loss", best_losses}, {"sensitivity", sensitivities}};
  for (const auto& [name, quantity] : quantities) {
    const std::vector<std::string> settled = differences(comparison, quantity).settled;
    if (settled.empty() || (quantity == sensitivities && !comparison.has_sensitivity)) continue;
    parts.push_back(
        fmt::format("{} against the baseline, beyond the interval over seeds: {}", name, joined(settled, ", ")));
  }
  return {fmt::format("Shown, in {} of {} cells with {} seed{}{}: {}.", ablation.finished(), ablation.plan.cells.size(),
                      seeds, seeds == 1 ? "" : "s", range_of(comparison), joined(parts, "; ")),
          fmt::format("Not shown: {}.", joined(limits_of(ablation, comparison), "; "))};
}

}  // namespace keel::lab
