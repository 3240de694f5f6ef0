#include "framework/lab/ablation_report.h"

#include <algorithm>
#include <set>

#include "framework/lab/ablation_tables.h"
#include "framework/lab/findings.h"

namespace keel::lab {
namespace {

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
    if (std::ranges::max(reached) >= *std::ranges::min_element(first))
      loss.levels.emplace_back("before training", before);
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
