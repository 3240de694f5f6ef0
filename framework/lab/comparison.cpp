#include "framework/lab/comparison.h"

#include <algorithm>
#include <bit>

#include "framework/base/text.h"

namespace keel::lab {
namespace {

// Where the x axis stands among the axes; -1 without axes.
int x_axis(const Plan& plan) {
  const int lr = plan.axis("optimizer.lr");
  return lr >= 0 || plan.axes.empty() ? lr : 0;
}

// The values of a cell on the axes that are not x, as the end of a label.
std::string point_of(const Plan& plan, const Cell& cell, int x) {
  std::string text;
  for (size_t i = 0; i < plan.axes.size(); ++i)
    if (int(i) != x) {
      const std::string& key = plan.axes[i].key;
      text += fmt::format(", {} {}", key.substr(key.rfind('.') + 1), cell.values[i]);
    }
  return text;
}

// The result of one value for every seed; `f` says it of a seed's results over x, all of them there.
std::vector<double> per_seed(const Line& line, std::span<const size_t> xs, std::vector<size_t>* seeds,
                             const std::function<double(const std::vector<const CellResult*>&)>& f) {
  std::vector<double> values;
  if (seeds) seeds->clear();
  for (size_t seed = 0; seed < line.results[0].size(); ++seed) {
    std::vector<const CellResult*> results;
    for (size_t x : xs)
      if (line.results[x][seed]) results.push_back(line.results[x][seed]);
    if (results.size() != xs.size()) continue;
    values.push_back(f(results));
    if (seeds) seeds->push_back(seed);
  }
  return values;
}

std::vector<size_t> all_x(const Line& line) {
  std::vector<size_t> xs(line.results.size());
  for (size_t x = 0; x < xs.size(); ++x) xs[x] = x;
  return xs;
}

// Numbers of an axis ascending, however it was written or grew; other values as they are.
void arrange_x(Comparison& comparison) {
  std::vector<std::pair<double, std::string>> numbers;
  for (const std::string& text : comparison.x) {
    double number = 0;
    if (!parse_real(text, number)) return;
    numbers.emplace_back(number, text);
  }
  std::ranges::stable_sort(numbers, {}, &std::pair<double, std::string>::first);
  comparison.x.clear();
  for (auto& [number, text] : numbers) {
    comparison.x_numbers.push_back(number);
    comparison.x.push_back(std::move(text));
  }
}

// f(a, b) of the results of two lines, one of which may be null, at every x and seed.
template <class F>
void each_pair(const Line& a, const Line& b, F f) {
  for (size_t x = 0; x < a.results.size(); ++x)
    for (size_t seed = 0; seed < a.results[x].size(); ++seed) f(a.results[x][seed], b.results[x][seed]);
}

}  // namespace

Comparison compare(const Ablation& ablation) {
  const Plan& plan = ablation.plan;
  const int axis = x_axis(plan);
  Comparison comparison{.x_key = axis < 0 ? "" : plan.axes[size_t(axis)].key,
                        .x = axis < 0 ? std::vector<std::string>{""} : plan.axes[size_t(axis)].values};
  arrange_x(comparison);
  comparison.has_sensitivity = comparison.x_key == "optimizer.lr" && log_spaced(comparison.x_numbers);
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < plan.cells.size(); ++i) {
    const Cell& cell = plan.cells[i];
    const std::string point = point_of(plan, cell, axis), label = cell.arm + point;
    const auto [place, fresh] = places.emplace(label, comparison.lines.size());
    if (fresh) {
      Line line{.label = label, .arm = cell.arm};
      line.results.assign(comparison.x.size(), std::vector<const CellResult*>(plan.seeds.size(), nullptr));
      line.cells.assign(comparison.x.size(), std::vector<size_t>(plan.seeds.size(), 0));
      comparison.lines.push_back(line);
      comparison.lines.back().baseline = places.at(plan.baseline + point);  // which comes first at each point
    }
    const size_t x = axis < 0 ? 0
                              : size_t(std::find(comparison.x.begin(), comparison.x.end(), cell.values[size_t(axis)]) -
                                       comparison.x.begin());
    const size_t seed = size_t(std::find(plan.seeds.begin(), plan.seeds.end(), cell.seed) - plan.seeds.begin());
    Line& line = comparison.lines[place->second];
    line.cells[x][seed] = i;
    const auto& result = ablation.results[i];
    if (result) line.results[x][seed] = &*result;
  }
  return comparison;
}

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

bool any_lost(const Line& line, size_t x) {
  return std::ranges::any_of(line.results[x], [](const CellResult* result) { return result && !result->lost.empty(); });
}

double counted_loss(const CellResult& result) {
  return std::isfinite(result.valid_loss) ? result.valid_loss : result.first_loss;
}

std::vector<double> sensitivities(const Line& line, std::vector<size_t>* seeds) {
  return per_seed(line, all_x(line), seeds, [](const std::vector<const CellResult*>& results) {
    std::vector<double> losses;
    for (const CellResult* result : results) losses.push_back(result->valid_loss);
    return lr_sensitivity(losses, results[0]->first_loss);
  });
}

std::vector<double> best_losses(const Line& line, std::vector<size_t>* seeds) {
  return per_seed(line, all_x(line), seeds, [](const std::vector<const CellResult*>& results) {
    double best = INFINITY;
    for (const CellResult* result : results) best = std::min(best, counted_loss(*result));
    return best;
  });
}

std::vector<double> losses_at(const Line& line, size_t x, std::vector<size_t>* seeds) {
  return per_seed(line, std::span(&x, 1), seeds,
                  [](const std::vector<const CellResult*>& results) { return counted_loss(*results[0]); });
}

Estimate difference(const Line& line, const Line& baseline,
                    const std::function<std::vector<double>(const Line&, std::vector<size_t>*)>& values) {
  std::vector<size_t> seeds, baseline_seeds;
  const std::vector<double> own = values(line, &seeds), other = values(baseline, &baseline_seeds);
  std::vector<double> a, b;
  for (size_t i = 0; i < seeds.size(); ++i) {
    const auto found = std::find(baseline_seeds.begin(), baseline_seeds.end(), seeds[i]);
    if (found == baseline_seeds.end()) continue;
    a.push_back(own[i]);
    b.push_back(other[size_t(found - baseline_seeds.begin())]);
  }
  return paired_difference(a, b);
}

std::vector<double> step_time_ratios(const Line& line, const Line& baseline) {
  std::vector<double> ratios;
  each_pair(line, baseline, [&](const CellResult* a, const CellResult* b) {
    if (!a || !b) return;
    const bool quick = a->quick_seconds_per_step && b->quick_seconds_per_step;
    const double own = quick ? *a->quick_seconds_per_step : a->seconds_per_step;
    const double other = quick ? *b->quick_seconds_per_step : b->seconds_per_step;
    if (other > 0) ratios.push_back(own / other);
  });
  return ratios;
}

std::string text_of_ratios(const std::vector<double>& ratios) {
  constexpr double kQuiet = 1.2;  // largest over smallest
  if (ratios.empty()) return "-";
  const auto [least, most] = std::ranges::minmax(ratios);
  std::string text = fmt::format("{:.3f}", median(ratios));
  if (least != most) text += fmt::format(" ({:.3f} to {:.3f})", least, most);
  return most > kQuiet * least ? text + ", machine not quiet" : text;
}

bool same_results(const Line& a, const Line& b) {
  auto same = [](double one, double other) { return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other); };
  bool any = false, all = true;
  each_pair(a, b, [&](const CellResult* one, const CellResult* other) {
    any |= one != nullptr;
    if (!one || !other) return void(all &= one == other);
    for (auto value :
         {&CellResult::valid_loss, &CellResult::train_loss, &CellResult::largest_logit, &CellResult::last_logit})
      all &= same(one->*value, other->*value);
  });
  return any && all;
}

std::string text_of(const Estimate& estimate, const char* number) {
  if (estimate.count == 0) return "-";
  const std::string mean = fmt::format(fmt::runtime(number), estimate.mean);
  if (!estimate.half_width) return mean;
  return mean + " ± " + fmt::format(fmt::runtime(number), *estimate.half_width);
}

}  // namespace keel::lab
