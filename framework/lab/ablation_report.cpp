#include "framework/lab/ablation_report.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "framework/base/text.h"
#include "framework/lab/comparison.h"
#include "framework/lab/findings.h"

namespace keel::lab {
namespace {

using Rows = std::vector<std::vector<std::string>>;

// The cells of a line at one x that have ended, and one number of each.
std::vector<double> values_at(const Line& line, size_t x, double (*value)(const CellResult&)) {
  std::vector<double> values;
  for (const CellResult* result : line.results[x])
    if (result) values.push_back(value(*result));
  return values;
}

std::vector<double> values_of(const Line& line, double (*value)(const CellResult&)) {
  std::vector<double> values;
  for (size_t x = 0; x < line.results.size(); ++x)
    for (double each : values_at(line, x, value)) values.push_back(each);
  return values;
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

bool any_lost(const Line& line, size_t x) {
  return std::ranges::any_of(line.results[x], [](const CellResult* result) { return result && !result->lost.empty(); });
}

// Means over seeds, with bars from the smallest to the largest; values that are not numbers are left out. Lines are
// moved apart a little so that bars are seen. Without an axis each has a place of its own.
Series over_x(const Comparison& comparison, size_t index, double (*value)(const CellResult&)) {
  const Line& line = comparison.lines[index];
  Series series{.label = line.label, .color = int(index), .points = true, .dashed = line.baseline == index};
  const double place = (double(index) + 0.5) / double(comparison.lines.size()) - 0.5;  // of the line among the others
  if (!comparison.x_key.empty()) series.aside = place * (comparison.x_numbers.empty() ? 0.4 : 0.08);
  for (size_t x = 0; x < line.results.size(); ++x) {
    std::vector<double> values = values_at(line, x, value);
    std::erase_if(values, [](double each) { return std::isnan(each); });
    if (values.empty()) continue;
    series.x.push_back(comparison.x_key.empty()       ? double(index)
                       : comparison.x_numbers.empty() ? double(x)
                                                      : comparison.x_numbers[x]);
    series.open.push_back(any_lost(line, x));
    series.y.push_back(estimate(values).mean);
    series.low.push_back(*std::min_element(values.begin(), values.end()));
    series.high.push_back(*std::max_element(values.begin(), values.end()));
  }
  if (series.low == series.high) series.low.clear(), series.high.clear();
  return series;
}

bool spans_a_decade(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *least > 0 && *most >= 10 * *least;
}

Chart chart_over_x(const Comparison& comparison, Chart chart, double (*value)(const CellResult&)) {
  chart.x_label = comparison.x_key.empty() ? "arm" : comparison.x_key;
  chart.open_label = "with lost cells";
  chart.legend = !comparison.x_key.empty();
  if (comparison.x_key.empty())
    for (const Line& line : comparison.lines) chart.x_names.push_back(line.label);
  else if (comparison.x_numbers.empty())
    chart.x_names = comparison.x;
  else
    chart.log_x = spans_a_decade(comparison.x_numbers);
  for (size_t i = 0; i < comparison.lines.size(); ++i) {
    Series series = over_x(comparison, i, value);
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  return chart;
}

// What every cell that has ended says alike; nothing where they differ.
std::optional<double> common(const Comparison& comparison, double (*value)(const CellResult&)) {
  std::set<double> values;
  for (const Line& line : comparison.lines)
    for (double each : values_of(line, value)) values.insert(each);
  if (values.size() != 1) return std::nullopt;
  return *values.begin();
}

void add_losses(Page& page, const Comparison& comparison) {
  Chart loss = chart_over_x(
      comparison, {.name = "loss", .title = "Held-out loss at the end.", .y_label = "nats per token"}, counted_loss);
  if (const auto bigram = common(comparison, [](const CellResult& r) { return r.bigram_loss; }))
    loss.levels.emplace_back("token bigram", *bigram);
  std::string caption = "Means over seeds, bars from the lowest to the highest seed. The baseline is dashed.";
  std::vector<double> first, reached;
  bool finite = true;
  for (const Line& line : comparison.lines) {
    for (double each : values_of(line, [](const CellResult& r) { return r.first_loss; })) first.push_back(each);
    for (double each : values_of(line, counted_loss)) reached.push_back(each);
  }
  if (comparison.x_key == "optimizer.lr") {
    const double before = estimate(first).mean;
    caption += fmt::format(" Before training it is {:.2f}.", before);
    if (largest(reached) >= *std::ranges::min_element(first)) loss.levels.emplace_back("before training", before);
  }
  for (const Line& line : comparison.lines)
    for (double each : values_of(line, [](const CellResult& r) { return r.valid_loss; })) finite &= std::isfinite(each);
  if (!finite) caption += " A loss that is not finite stands at that before training.";
  page.picture(draw(loss), caption);
  Chart logits = chart_over_x(comparison,
                              {.name = "largest_logit",
                               .title = "Largest logit of any step, layer and head.",
                               .y_label = "|s|",
                               .log_y = true,
                               .levels = {{"lost above", kLostLogit}}},
                              [](const CellResult& r) { return r.largest_logit; });
  page.picture(draw(logits), "Before soft-cap and softmax; ∞: not finite.");
}

void add_entropies(Page& page, const Comparison& comparison) {
  const Chart mean = chart_over_x(
      comparison,
      {.name = "entropy", .title = "Entropy of attention at the end, mean over layers and heads.", .y_label = "nats"},
      [](const CellResult& r) { return r.entropy.value_or(std::nan("")); });
  if (mean.series.empty()) return;  // no telemetry
  page.picture(draw(mean), "A causal head that looks at all of T tokens alike has about ln(T) - 1.");
  const Chart least = chart_over_x(
      comparison, {.name = "least_entropy", .title = "Smallest entropy of any head at the end.", .y_label = "nats"},
      [](const CellResult& r) { return r.least_entropy.value_or(std::nan("")); });
  page.picture(draw(least), "Near 0 a head looks at one key only.");
}

void add_sensitivity(Page& page, const Comparison& comparison) {
  if (!comparison.has_sensitivity) {
    if (comparison.x_key == "optimizer.lr" && comparison.x.size() > 1)
      page.paragraph("No sensitivity: these learning rates are not evenly spaced on a log scale.");
    return;
  }
  Chart chart{.name = "sensitivity",
              .title = "Learning-rate sensitivity.",
              .x_label = "",
              .y_label = "nats per token",
              .legend = false,
              .size = {760, 320}};
  for (size_t i = 0; i < comparison.lines.size(); ++i) {
    const std::vector<double> values = sensitivities(comparison.lines[i]);
    chart.x_names.push_back(comparison.lines[i].label);
    if (values.empty()) continue;
    const Estimate e = estimate(values);
    Series series{.label = comparison.lines[i].label,
                  .x = {double(i)},
                  .y = {e.mean},
                  .color = int(i),
                  .line = false,
                  .points = true};
    if (e.half_width) series.low = {e.mean - *e.half_width}, series.high = {e.mean + *e.half_width};
    chart.series.push_back(series);
  }
  if (chart.series.empty()) return;
  chart.levels = {{"none at all", 0}};
  page.picture(
      draw(chart),
      "Mean over the grid of min(loss, loss before training) minus the best of the arm and seed; bars: Student's "
      "95% interval over seeds, from 3 seeds on.");
}

// One row per line and x, the largest of the seeds' logits at each step.
void add_logits_over_steps(Page& page, const Ablation& ablation, const Comparison& comparison) {
  HeatMap map{.name = "logits_over_steps",
              .title = "Largest logit over the steps.",
              .x_label = "step",
              .value_label = "|s|",
              .log_color = true};
  for (const Line& line : comparison.lines)
    for (size_t x = 0; x < line.results.size(); ++x) {
      std::vector<double> row(map.x.size(), std::numeric_limits<double>::quiet_NaN());
      bool any = false;
      for (size_t seed = 0; seed < line.results[x].size(); ++seed) {
        if (!line.results[x][seed]) continue;
        any = true;
        const RunRecord run = read_steps(cell_directory(ablation.directory, ablation.plan.cells[line.cells[x][seed]]));
        for (size_t i = map.x.size(); i < run.steps.size(); ++i) map.x.push_back(double(run.steps[i].step));
        row.resize(map.x.size(), std::numeric_limits<double>::quiet_NaN());
        for (size_t i = 0; i < run.steps.size(); ++i) {
          const double logit = run.steps[i].largest_logit, known = std::isnan(logit) ? INFINITY : logit;
          row[i] = std::isnan(row[i]) ? known : std::max(row[i], known);
        }
      }
      if (!any) continue;
      map.rows.push_back(line.label + (comparison.x_key.empty() ? "" : "  " + comparison.x[x]));
      map.values.push_back(row);
    }
  for (std::vector<double>& row : map.values) row.resize(map.x.size(), std::numeric_limits<double>::quiet_NaN());
  if (map.x.empty()) return;
  page.picture(draw(map), "Rows: arm and " + comparison.x_key + "; the largest of all seeds.");
}

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

std::vector<std::string> difference_row(const std::string& label, const std::string& what, const Estimate& e) {
  return {label,
          what,
          e.count == 0 ? "" : fmt::format("{:+.4f}", e.mean),
          e.half_width ? fmt::format("{:+.4f} to {:+.4f}", e.mean - *e.half_width, e.mean + *e.half_width) : "-",
          e.p ? fmt::format("{:.3g}", *e.p) : "-",
          fmt::format("{}", e.count)};
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

std::string mean_share(const Line& line, double (*share)(const CellResult&)) {
  std::vector<double> shares = values_of(line, share);
  std::erase_if(shares, [](double each) { return std::isnan(each); });  // no step was judged
  return text_of_share(shares.empty() ? std::nan("") : estimate(shares).mean);
}

std::string total(const Line& line, double (*count)(const CellResult&)) {
  const std::vector<double> counts = values_of(line, count);
  return fmt::format("{}", std::accumulate(counts.begin(), counts.end(), 0.0));
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

}  // namespace

Page ablation_report(const Ablation& ablation, const std::string& config) {
  if (ablation.finished() == 0) throw input_error("{}: no cell has ended yet", ablation.directory);
  const Comparison comparison = compare(ablation);
  const Findings found = findings(ablation);
  Page page(ablation.plan.name);
  page.paragraph(found.shown, "finding");
  page.paragraph(found.not_shown, "finding");
  add_overview(page, comparison);
  add_arms(page, ablation);
  page.heading(comparison.has_sensitivity ? "Loss, attention, sensitivity" : "Loss and attention");
  add_losses(page, comparison);
  add_entropies(page, comparison);
  add_sensitivity(page, comparison);
  add_logits_over_steps(page, ablation, comparison);
  add_stream(page, comparison);
  add_lost(page, ablation, comparison);
  add_differences(page, ablation, comparison);
  add_spikes(page, comparison);
  add_costs(page, comparison);
  add_troubles(page, ablation);
  page.details("The config", config);
  return page;
}

}  // namespace keel::lab
