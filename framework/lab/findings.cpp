// Two sentences from the numbers of an ablation, by fixed rules: no adjective that a number does not carry.
#include "framework/lab/findings.h"

#include <algorithm>
#include <map>
#include <span>

#include "framework/lab/comparison.h"

namespace keel::lab {
namespace {

// What the finished cells of one line have in common.
struct Tally {
  size_t cells = 0, lost = 0;
  int64_t outside_bound = 0;
};

Tally tally(const Line& line) {
  Tally tally;
  for (const auto& seeds : line.results)
    for (const CellResult* result : seeds) {
      if (!result) continue;
      ++tally.cells;
      tally.lost += !result->lost.empty();
      tally.outside_bound += result->outside_bound;
    }
  return tally;
}

// "a, b, c and 4 more"
std::string listed(const std::vector<std::string>& parts) {
  constexpr size_t kMost = 4;
  const size_t shown = parts.size() > kMost ? kMost - 1 : parts.size();
  const std::string text = fmt::format("{}", fmt::join(std::span(parts).first(shown), ", "));
  return shown == parts.size() ? text : fmt::format("{} and {} more", text, parts.size() - shown);
}

// "1e-3 to 3e-1", or names; "" without an axis.
std::string range_of(const Comparison& comparison) {
  if (comparison.x_key.empty()) return "";
  if (comparison.x_numbers.empty()) return fmt::format(" over {} {}", comparison.x_key, listed(comparison.x));
  if (comparison.x.size() == 1) return fmt::format(" at {} {}", comparison.x_key, comparison.x[0]);
  return fmt::format(" over {} from {} to {}", comparison.x_key, comparison.x.front(), comparison.x.back());
}

// A quantity of a line, per seed.
using Quantity = std::vector<double> (*)(const Line&, std::vector<size_t>*);

// The lines with the smallest mean of a quantity, and the baseline's; "" where no line has it.
std::string best_of(const Comparison& comparison, Quantity quantity, const char* what) {
  double least = INFINITY;
  std::vector<std::string> best;
  size_t at = 0;  // the baseline of the first of them
  for (const Line& line : comparison.lines) {
    const std::vector<double> values = quantity(line, nullptr);
    if (values.empty() || estimate(values).mean > least) continue;
    if (estimate(values).mean < least) best.clear();
    if (best.empty()) at = line.baseline;
    least = estimate(values).mean;
    best.push_back(line.label);
  }
  if (best.empty()) return "";
  std::string text = fmt::format("{} {:.3f} with {}", what, least, listed(best));
  const Line& baseline = comparison.lines[at];
  const std::vector<double> of_baseline = quantity(baseline, nullptr);
  if (!of_baseline.empty() && best[0] != baseline.label)
    text += fmt::format(" (baseline {}: {:.3f})", baseline.label, estimate(of_baseline).mean);
  return text;
}

std::string lost_cells(const Comparison& comparison) {
  std::vector<std::string> lost;
  size_t others = 0;
  for (const Line& line : comparison.lines) {
    const Tally t = tally(line);
    if (t.lost > 0) lost.push_back(fmt::format("{} of {} with {}", t.lost, t.cells, line.label));
    others += t.lost == 0 && t.cells > 0;
  }
  if (lost.empty()) return "no cell is lost";
  std::string text = "cells lost: " + listed(lost);
  if (others > 0) text += fmt::format("; the other {} lost none", others == 1 ? "arm" : fmt::format("{} arms", others));
  return text;
}

// Lines by what their difference to the baseline is: beyond its interval, with the numbers, the largest first; within
// it; without one, for lack of seeds that both have whole.
struct Differences {
  std::vector<std::string> settled, open, short_of_seeds;
};

Differences differences(const Comparison& comparison, Quantity quantity) {
  Differences result;
  std::vector<std::pair<double, std::string>> settled;
  for (size_t i = 0; i < comparison.lines.size(); ++i) {
    const Line& line = comparison.lines[i];
    if (line.baseline == i || tally(line).cells == 0) continue;
    const Estimate e = difference(line, comparison.lines[line.baseline], quantity);
    if (!e.half_width)
      result.short_of_seeds.push_back(line.label);
    else if (std::abs(e.mean) > *e.half_width)
      settled.emplace_back(-std::abs(e.mean), fmt::format("{} {:+.3f} ± {:.3f}", line.label, e.mean, *e.half_width));
    else
      result.open.push_back(line.label);
  }
  std::ranges::stable_sort(settled, {}, &std::pair<double, std::string>::first);
  for (auto& [size, text] : settled) result.settled.push_back(std::move(text));
  return result;
}

// What reports compare: a name and how it is computed.
std::vector<std::pair<const char*, Quantity>> quantities_of(const Comparison& comparison) {
  std::vector<std::pair<const char*, Quantity>> quantities = {{"best loss", best_losses}};
  if (comparison.has_sensitivity) quantities.emplace_back("sensitivity", sensitivities);
  return quantities;
}

// What lies beyond the intervals; "" where nothing does.
std::string settled_differences(const Comparison& comparison) {
  std::vector<std::string> parts;
  size_t compared = 0;
  for (const auto& [name, quantity] : quantities_of(comparison)) {
    const Differences found = differences(comparison, quantity);
    compared += found.settled.size() + found.open.size();
    if (!found.settled.empty()) parts.push_back(fmt::format("{} {}", name, listed(found.settled)));
  }
  if (parts.empty()) return "";
  return fmt::format("against the baseline, beyond the interval over seeds ({} comparison{}, each at 95%): {}",
                     compared, compared == 1 ? "" : "s", fmt::join(parts, "; "));
}

// The arm before this one whose cells all came to the same, if there is one.
std::optional<std::string> twin_of(const Comparison& comparison, const std::string& arm) {
  std::map<std::string, std::vector<const Line*>> lines;  // by arm, each at the same points in the same order
  std::vector<std::string> before;
  for (const Line& line : comparison.lines) {
    if (lines[line.arm].empty()) before.push_back(line.arm);
    lines[line.arm].push_back(&line);
  }
  before.resize(size_t(std::ranges::find(before, arm) - before.begin()));
  for (const std::string& other : before)
    if (std::ranges::equal(lines[arm], lines[other], [](const Line* a, const Line* b) { return same_results(*a, *b); }))
      return other;
  return std::nullopt;
}

std::vector<std::string> twins(const Ablation& ablation, const Comparison& comparison) {
  std::vector<std::string> found;
  for (const Arm& arm : ablation.plan.arms)
    if (const auto twin = twin_of(comparison, arm.name))
      found.push_back(
          fmt::format("{} came to the same as {} bit for bit, so what they differ in never acted", arm.name, *twin));
  return found;
}

// What moves together in arms, those apart whose keys did nothing.
std::vector<std::string> limits_of_arms(const Ablation& ablation, const Comparison& comparison) {
  std::vector<std::string> limits, arms, unseen;
  size_t keys = 0;
  for (const Arm& arm : ablation.plan.arms) {
    if (arm.differences.size() <= 1 || twin_of(comparison, arm.name)) continue;
    arms.push_back(arm.name);
    keys = arm.differences.size();
  }
  if (arms.size() == 1)
    limits.push_back(fmt::format("which of its {} changed keys makes {} what it is", keys, arms[0]));
  else if (!arms.empty())
    limits.push_back(fmt::format("which of their changed keys makes {} what they are", listed(arms)));
  for (const Line& line : comparison.lines)
    if (tally(line).cells == 0) unseen.push_back(line.label);
  if (!unseen.empty()) limits.push_back(fmt::format("anything about {}, of which no cell has ended", listed(unseen)));
  return limits;
}

// What no interval settles.
std::vector<std::string> limits_of_seeds(const Ablation& ablation, const Comparison& comparison) {
  std::vector<std::string> limits;
  const size_t planned = ablation.plan.seeds.size();
  const Differences best = differences(comparison, best_losses);
  const bool none = best.settled.empty() && best.open.empty();
  if (planned < kLeastForInterval)
    limits.push_back("with fewer than 3 seeds no interval can be given, so small differences in loss may be chance");
  else if (none && !best.short_of_seeds.empty())
    limits.push_back(
        fmt::format("with fewer than 3 of {} seeds complete no interval can be given, so small differences in loss may "
                    "be chance",
                    planned));
  else if (!best.short_of_seeds.empty())
    limits.push_back(fmt::format("how much of {} against the baseline is chance: fewer than 3 of {} seeds are complete",
                                 listed(best.short_of_seeds), planned));
  for (const auto& [name, quantity] : quantities_of(comparison))
    if (const std::vector<std::string> open = differences(comparison, quantity).open; !open.empty())
      limits.push_back(fmt::format("that {} {} from the baseline in {} {}: the interval holds 0", listed(open),
                                   open.size() == 1 ? "differs" : "differ", open.size() == 1 ? "its" : "their", name));
  return limits;
}

std::string not_shown(const Ablation& ablation, const Comparison& comparison) {
  std::vector<std::string> limits = limits_of_seeds(ablation, comparison);
  for (std::string& limit : limits_of_arms(ablation, comparison)) limits.push_back(std::move(limit));
  const size_t failed = ablation.failed(), waiting = ablation.plan.cells.size() - ablation.finished() - failed;
  if (failed > 0) limits.push_back(fmt::format("{} cells failed", failed));
  if (waiting > 0) limits.push_back(fmt::format("{} cells have not ended", waiting));
  limits.push_back("anything about other sizes, data or longer runs");
  return fmt::format("Not shown: {}.", fmt::join(limits, "; "));
}

// Who is best, and who loses cells.
std::string headline(const Ablation& ablation, const Comparison& comparison) {
  const size_t seeds = ablation.plan.seeds.size();
  std::string best;
  if (comparison.has_sensitivity) best = best_of(comparison, sensitivities, "lowest learning-rate sensitivity");
  if (const std::string loss = best_of(comparison, best_losses, "lowest held-out loss"); !loss.empty())
    best += (best.empty() ? "" : "; ") + loss;
  if (!best.empty()) best += "; ";
  return fmt::format("Shown, in {} of {} cells with {} seed{}{}: {}{}.", ablation.finished(),
                     ablation.plan.cells.size(), seeds, seeds == 1 ? "" : "s", range_of(comparison), best,
                     lost_cells(comparison));
}

}  // namespace

Findings findings(const Ablation& ablation) {
  const Comparison comparison = compare(ablation);
  std::vector<std::string> more = twins(ablation, comparison);
  if (const std::string settled = settled_differences(comparison); !settled.empty()) more.insert(more.begin(), settled);
  for (const Line& line : comparison.lines)
    if (const int64_t outside = tally(line).outside_bound; outside > 0)
      more.push_back(fmt::format("{} was above its bound in {} steps: a fault of this program", line.label, outside));
  std::string shown = headline(ablation, comparison);
  if (!more.empty()) shown += fmt::format(" Also: {}.", fmt::join(more, "; "));
  return {shown, not_shown(ablation, comparison)};
}

}  // namespace keel::lab
