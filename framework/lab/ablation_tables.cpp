#include "framework/lab/ablation_tables.h"

#include <algorithm>
#include <numeric>

#include "framework/base/text.h"

namespace keel::lab {
namespace {

using Rows = std::vector<std::vector<std::string>>;

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// The smallest learning rate with a lost cell.
std::string lost_from(const Comparison& comparison, const Line& line) {
  for (size_t x = 0; x < comparison.x.size(); ++x)
    if (any_lost(line, x)) return comparison.x[x];
  return "-";
}

// What the highest learning rate costs, over the seeds that have all cells.
std::vector<double> losses_at_the_end(const Line& line) {
  std::vector<size_t> seeds, whole;
  const std::vector<double> last = losses_at(line, line.results.size() - 1, &seeds), best = best_losses(line, &whole);
  std::vector<double> losses;
  for (size_t i = 0; i < whole.size(); ++i)
    losses.push_back(last[size_t(std::ranges::find(seeds, whole[i]) - seeds.begin())] - best[i]);
  return losses;
}

std::vector<std::string> difference_row(const std::string& label, const std::string& what, const Estimate& e) {
  return {label,
          what,
          e.count == 0 ? "" : fmt::format("{:+.4f}", e.mean),
          e.half_width ? fmt::format("{:+.4f} to {:+.4f}", e.mean - *e.half_width, e.mean + *e.half_width) : "-",
          e.p ? fmt::format("{:.3g}", *e.p) : "-",
          fmt::format("{}", e.count)};
}

std::string mean_share(const Line& line, double (*share)(const CellResult&)) {
  std::vector<double> shares = values_of(line, share);
  std::erase_if(shares, [](double each) { return std::isnan(each); });  // no step was judged
  return text_of_share(shares.empty() ? std::nan("") : estimate(shares).mean);
}

std::string total(const Line& line, double (*count)(const CellResult&)) {
  const std::vector<double> counts = values_of(line, count);
  return fmt::format("{}", std::accumulate(counts.begin(), counts.end(), 0.0));
}

}  // namespace

void add_arms(Page& page, const Ablation& ablation) {
  Rows rows = {{"arm", "differs from " + ablation.plan.baseline + " in", "baseline", "arm"}};
  for (const Arm& arm : ablation.plan.arms) {
    if (arm.differences.empty())
      rows.push_back({arm.name, arm.name == ablation.plan.baseline ? "the baseline" : "nothing", "", ""});
    for (size_t i = 0; i < arm.differences.size(); ++i)
      rows.push_back(
          {i == 0 ? arm.name : "", arm.differences[i].key, arm.differences[i].baseline, arm.differences[i].arm});
  }
  page.heading("The arms");
  page.table(rows);
}

void add_overview(Page& page, const Comparison& comparison) {
  const bool rates = comparison.x_key == "optimizer.lr" && comparison.x.size() > 1;
  Rows rows = {{"arm", "best held-out loss"}};
  if (comparison.has_sensitivity) rows[0].push_back("sensitivity");
  rows[0].push_back("lost");
  if (rates)
    rows[0].insert(rows[0].end(), {"lost from learning rate", "loss at " + comparison.x.back() + " minus best"});
  rows[0].insert(rows[0].end(), {"largest logit", "of its bound", "step time against the baseline"});
  for (const Line& line : comparison.lines) {
    const std::vector<double> lost = values_of(line, [](const CellResult& r) { return double(!r.lost.empty()); });
    const std::vector<double> used = values_of(line, [](const CellResult& r) { return r.bound_used.value_or(-1); });
    if (lost.empty()) continue;
    rows.push_back({line.label, text_of(estimate(best_losses(line)))});
    std::vector<std::string>& row = rows.back();
    if (comparison.has_sensitivity) row.push_back(text_of(estimate(sensitivities(line))));
    row.push_back(fmt::format("{} of {}", std::count(lost.begin(), lost.end(), 1.0), lost.size()));
    if (rates)
      row.insert(row.end(), {lost_from(comparison, line), text_of(estimate(losses_at_the_end(line)), "{:.3f}")});
    row.push_back(fmt::format("{:.3g}", largest(values_of(line, [](const CellResult& r) { return r.largest_logit; }))));
    row.push_back(largest(used) > 0 ? fmt::format("{:.0f}%", 100 * largest(used)) : "no bound");
    row.push_back(text_of_ratios(step_time_ratios(line, comparison.lines[line.baseline])));
  }
  page.heading("Overview");
  page.table(rows);
}

// Planted or grown outliers; nothing without telemetry.
void add_stream(Page& page, const Comparison& comparison) {
  Rows rows = {{"arm", "share of |x| > 6, mean", "largest", "kurtosis, mean", "largest"}};
  for (const Line& line : comparison.lines) {
    std::vector<double> shares = values_of(line, [](const CellResult& r) { return r.outlier_share.value_or(-1); });
    std::vector<double> kurtoses = values_of(line, [](const CellResult& r) { return r.kurtosis.value_or(-1); });
    for (auto* values : {&shares, &kurtoses}) std::erase(*values, -1);
    if (shares.empty() || kurtoses.empty()) continue;
    rows.push_back({line.label, fmt::format("{:.4f}", estimate(shares).mean), fmt::format("{:.4f}", largest(shares)),
                    fmt::format("{:.3g}", estimate(kurtoses).mean), fmt::format("{:.3g}", largest(kurtoses))});
  }
  if (rows.size() == 1) return;
  page.heading("Outliers in the residual stream");
  page.paragraph(
      "At the end, of each cell's worst layer. The share is absolute: where the whole stream grows, it grows as well, "
      "and kurtosis (3 for a normal distribution) does not.");
  page.table(rows);
}

// A cell of the table of lost cells: "2/5".
void add_lost(Page& page, const Ablation& ablation, const Comparison& comparison) {
  Rows rows = {{comparison.x_key.empty() ? "lost" : "lost at " + comparison.x_key}};
  for (const std::string& x : comparison.x) rows[0].push_back(x);
  for (const Line& line : comparison.lines) {
    rows.push_back({line.label});
    for (size_t x = 0; x < line.results.size(); ++x) {
      const std::vector<double> lost = values_at(line, x, [](const CellResult& r) { return double(!r.lost.empty()); });
      rows.back().push_back(
          lost.empty() ? "" : fmt::format("{}/{}", std::count(lost.begin(), lost.end(), 1.0), lost.size()));
    }
  }
  page.heading("Lost cells");
  page.paragraph(
      fmt::format("Lost: a loss or gradient that is not finite, a logit above {:g}, or a held-out loss above the token "
                  "bigram's at the end. The label changes no number.",
                  kLostLogit));
  page.table(rows);
  Rows reasons = {{"lost cell", "why: what came first"}};
  for (size_t i = 0; i < ablation.results.size(); ++i)
    if (const auto& result = ablation.results[i]; result && !result->lost.empty())
      reasons.push_back({ablation.plan.cells[i].name, result->lost});
  if (reasons.size() > 1) page.table(reasons);
}

void add_differences(Page& page, const Ablation& ablation, const Comparison& comparison) {
  Rows rows = {{"arm minus " + ablation.plan.baseline, "of", "mean", "95% interval", "p", "seeds"}};
  for (size_t i = 0; i < comparison.lines.size(); ++i) {
    const Line &line = comparison.lines[i], &baseline = comparison.lines[line.baseline];
    if (line.baseline == i) continue;
    rows.push_back(difference_row(line.label, "best loss", difference(line, baseline, best_losses)));
    if (comparison.x.size() < 2) continue;
    if (comparison.has_sensitivity)
      rows.push_back(difference_row("", "sensitivity", difference(line, baseline, sensitivities)));
    for (size_t x = 0; x < comparison.x.size(); ++x)
      rows.push_back(difference_row("", fmt::format("loss at {}", comparison.x[x]),
                                    difference(line, baseline, [&](const Line& each, std::vector<size_t>* seeds) {
                                      return losses_at(each, x, seeds);
                                    })));
  }
  if (rows.size() == 1) return;
  page.heading("Paired differences");
  std::string text =
      "Seed by seed, in nats per token; below 0 the arm is better. Student's interval from 3 seeds on, p from 5 on.";
  const auto intervals = std::count_if(rows.begin() + 1, rows.end(), [](const auto& row) { return row[3] != "-"; });
  if (intervals > 1)
    text += fmt::format(" {} comparisons, each at 95%: where nothing differs, about one in 20 still excludes 0.",
                        intervals);
  page.paragraph(text);
  page.table(rows);
}

void add_spikes(Page& page, const Comparison& comparison) {
  Rows rows = {{"arm", "loss, 7 dev. of 1,000", "loss, 6 of 128", "gradient norm, 7 of 1,000", "6 of 128",
                "skipped steps", "lowered rates", "rollbacks", "with fallbacks", "largest logit given up"}};
  for (const Line& line : comparison.lines) {
    const std::string rollbacks = total(line, [](const CellResult& r) { return double(r.rollbacks); });
    const double given_up = largest(values_of(line, [](const CellResult& r) { return r.given_up_logit; }));
    rows.push_back({line.label, mean_share(line, [](const CellResult& r) { return r.spikes.loss_7; }),
                    mean_share(line, [](const CellResult& r) { return r.spikes.loss_6; }),
                    mean_share(line, [](const CellResult& r) { return r.spikes.gradient_7; }),
                    mean_share(line, [](const CellResult& r) { return r.spikes.gradient_6; }),
                    total(line, [](const CellResult& r) { return double(r.skipped_steps); }),
                    total(line, [](const CellResult& r) { return double(r.lowered_rates); }), rollbacks,
                    total(line, [](const CellResult& r) { return double(r.fallbacks); }),
                    rollbacks == "0" ? "-" : fmt::format("{:.3g}", given_up)});
  }
  page.heading("Spikes, and what was done about trouble");
  page.paragraph(
      "Share of the steps that lie so many deviations from the mean of those before, where 128 are: means over cells. "
      "Then counts over all cells of the line, and the largest logit of steps that rollbacks gave up.");
  page.table(rows);
}

void add_costs(Page& page, const Comparison& comparison) {
  Rows rows = {{"arm", "seconds per step", "against the baseline, cell by cell", "tokens per second", "memory planned",
                "against the baseline", "memory held"}};
  auto seconds = [](const Line& line) {
    return median(values_of(line, [](const CellResult& r) { return r.seconds_per_step; }));
  };
  auto memory = [](const Line& line) {
    return largest(values_of(line, [](const CellResult& r) { return r.memory_bytes; }));
  };
  auto held = [](const Line& line) {
    return largest(values_of(line, [](const CellResult& r) { return r.peak_resident_bytes.value_or(0); }));
  };
  for (const Line& line : comparison.lines) {
    const Line& baseline = comparison.lines[line.baseline];
    if (seconds(line) == 0) continue;
    const std::vector<double> each = values_of(line, [](const CellResult& r) { return r.seconds_per_step; });
    rows.push_back({line.label,
                    fmt::format("{:.4f} ({:.4f} to {:.4f})", seconds(line), *std::min_element(each.begin(), each.end()),
                                largest(each)),
                    text_of_ratios(step_time_ratios(line, baseline)),
                    human_count(median(values_of(line, [](const CellResult& r) { return r.tokens_per_second; }))),
                    human_bytes(memory(line)),
                    memory(baseline) > 0 ? fmt::format("{:.3f}", memory(line) / memory(baseline)) : "-",
                    held(line) > 0 ? human_bytes(held(line)) : "-"});
  }
  page.heading("Costs");
  page.paragraph(
      "Seconds: the median over cells of each cell's median step, with the fastest and the slowest cell; what else the "
      "machine did shows in them. Against the baseline: the median ratio, and the range, of cells at the same point "
      "and "
      "seed, by the fastest twentieth of their steps; keel bench, on a quiet machine, is what prices an arm. Memory is "
      "that of rank 0: what the run planned, and the most that its process held, cells "
      "that it ran before included.");
  page.table(rows);
}

void add_troubles(Page& page, const Ablation& ablation) {
  Rows rows = {{"cell", "ended", "at step", "why"}};
  for (size_t i = 0; i < ablation.results.size(); ++i) {
    const auto& result = ablation.results[i];
    const std::string& name = ablation.plan.cells[i].name;
    if (!result)
      rows.push_back({name, name_of(ablation.state(i)), "", ablation.failures[i]});
    else if (result->end != CellEnd::done)
      rows.push_back({name, name_of(result->end), fmt::format("{}", result->steps), result->reason});
  }
  if (rows.size() == 1) return page.paragraph("Every cell ran to its last step.");
  page.heading("Cells that were cut off, failed, or have not ended");
  page.paragraph(
      "A cell cut off early counts with its loss at that time, one that ended without a finite loss with that "
      "before training; failed ones are left out, and keel ablate tries them again.");
  page.table(rows);
}

}  // namespace keel::lab
