#include "framework/lab/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "framework/lab/csv.h"
#include "framework/lab/statistics.h"

namespace keel::lab {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostColumns = 160, kMostPoints = 2000;  // of a heat map, of a series, as they are drawn

// A text in gnuplot's single quotes, in which nothing is executed; what its enhanced mode would read as markup is
// escaped.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char letter : text) {
    if (std::string("_^{}@&~\\").find(letter) != std::string::npos) out += '\\';
    out += letter == '\n' ? ' ' : letter;
    if (letter == '\'') out += '\'';
  }
  return out + "'";
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : "NaN";
}

std::string csv_number(double value) {
  return std::isinf(value) ? fmt::format("{}", value) : number(value);
}

// In place of a picture that has nothing to show.
std::string no_values(const Scheme& scheme) {
  return fmt::format(
      "unset border\nunset tics\nset xrange [0:1]\nset yrange [0:1]\n"
      "set label 'no values' at graph 0.5, graph 0.5 center textcolor rgb '{}'\nplot -1 notitle\n",
      scheme.ink);
}

std::string common(const Scheme& scheme, const std::string& x_label, const std::string& y_label) {
  return fmt::format(
      "set encoding utf8\nset pointintervalbox 0\nset border 3 lc rgb '{0}'\nset grid lc rgb '{1}' lt 1 lw 0.7\n"
      "set tics nomirror textcolor rgb '{0}'\nset key textcolor rgb '{0}' outside right top Left reverse samplen 2\n"
      "set xlabel {2} textcolor rgb '{0}'\nset ylabel {3} textcolor rgb '{0}'\n",
      scheme.ink, scheme.grid, quoted(x_label), quoted(y_label));
}

std::string log_axis(const char* axis) {
  return fmt::format("set logscale {0}\nset format {0} '10^{{%L}}'\n", axis);
}

// Where a point is drawn.
double place_of(const Chart& chart, const Series& series, size_t i) {
  return chart.x_names.empty() ? series.x[i] * (1 + series.aside) : series.x[i] + series.aside;
}

bool has_values(const Chart& chart) {
  auto shown = [](double value, bool log) { return std::isfinite(value) && (!log || value > 0); };
  for (const Series& series : chart.series)
    for (size_t i = 0; i < series.x.size(); ++i)
      if (shown(series.x[i], chart.log_x) && shown(series.y[i], chart.log_y)) return true;
  return false;
}

// Where a line leaves what can be drawn: the first of each stretch of infinite values.
std::string infinities(const Chart& chart, const Series& series, const Scheme& scheme) {
  std::string text;
  for (size_t i = 0; i < series.y.size(); ++i)
    if (series.y[i] == INFINITY && (i == 0 || series.y[i - 1] != INFINITY))
      text += fmt::format("set label '∞' at first {}, graph 0.98 center textcolor rgb '{}'\n",
                          number(place_of(chart, series, i)), scheme.series[look_of(series).color]);
  return text;
}

// x, y, the point's number, and the ends of its bar.
std::string data_block(const Chart& chart, size_t index) {
  const Series& series = chart.series[index];
  std::string text = fmt::format("$d{} << EOD\n", index);
  for (size_t i = 0; i < series.x.size(); ++i) {
    const bool open = !series.open.empty() && series.open[i];
    text += fmt::format("{} {} {}", number(place_of(chart, series, i)), number(series.y[i]),
                        look_of(series).point - (open ? 1 : 0));
    if (!series.low.empty()) text += " " + number(series.low[i]) + " " + number(series.high[i]);
    text += "\n";
  }
  return text + "EOD\n";
}

// Bars below the points (of gnuplot's own, white blots would be part), and an entry of the legend of its own: points of
// several kinds get none.
std::string plot_of(const Series& series, size_t index, const Scheme& scheme) {
  const Look look = look_of(series);
  const bool points = series.points || !series.line;
  const std::string style = fmt::format("with {} lc rgb '{}' lw 2 dt {} ps {}",
                                        !series.line ? "points"
                                        : points     ? "linespoints"
                                                     : "lines",
                                        scheme.series[look.color], look.dash, series.line ? 0.7 : 0.9);
  std::string text;
  if (!series.low.empty())
    text = fmt::format(
        "$d{} using 1:4:(0):($5-$4) with vectors heads size graph 0.008,90 nofilled lc rgb '{}' lw 2 notitle, ", index,
        scheme.series[look.color]);
  text += points ? fmt::format("$d{} using 1:2:3 {} pt variable notitle", index, style)
                 : fmt::format("$d{} using 1:2 {} notitle", index, style);
  return text + fmt::format(", keyentry {} pt {} title {}", style, look.point, quoted(series.label));
}

// Space around what is drawn, so that nothing lies on the frame.
std::string x_range(const Chart& chart) {
  if (!chart.x_names.empty()) return fmt::format("set xrange [-0.5:{}]\n", double(chart.x_names.size()) - 0.5);
  double low = INFINITY, high = -INFINITY;
  for (const Series& series : chart.series)
    for (double x : series.x) low = std::min(low, x), high = std::max(high, x);
  if (!(low < high)) return "";
  const bool points = chart.series[0].points;
  if (chart.log_x) return fmt::format("set xrange [{}:{}]\n", low / 1.25, high * 1.25);
  const double space = points ? 0.05 * (high - low) : 0;
  return fmt::format("set xrange [{}:{}]\n", low - space, high + space);
}

// Levels included; nothing where all lies at one height. The sign of infinite values stands above everything else.
std::string y_range(const Chart& chart) {
  double low = INFINITY, high = -INFINITY, above = 0.05;
  auto include = [&](double y) {
    if (y == INFINITY) above = 0.15;
    if (std::isfinite(y) && (!chart.log_y || y > 0)) low = std::min(low, y), high = std::max(high, y);
  };
  for (const Series& series : chart.series)
    for (const auto* values : {&series.y, &series.low, &series.high}) std::ranges::for_each(*values, include);
  for (const auto& [label, value] : chart.levels) include(value);
  if (!(low < high)) return "";
  const double span = chart.log_y ? high / low : high - low;
  if (chart.log_y) return fmt::format("set yrange [{}:{}]\n", low / std::pow(span, 0.05), high * std::pow(span, above));
  return fmt::format("set yrange [{}:{}]\n", low - 0.05 * span, high + above * span);
}

// Many names stand aslant.
std::string names_of_x(const std::vector<std::string>& names) {
  constexpr size_t kMostUpright = 6;
  if (names.empty()) return "";
  std::string text = "set xtics (";
  for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{}{} {}", i > 0 ? ", " : "", quoted(names[i]), i);
  return text + (names.size() > kMostUpright ? ") rotate by 30 right\n" : ")\n");
}

std::string script(const Chart& chart, const Scheme& scheme) {
  if (!has_values(chart)) return no_values(scheme);
  std::string text =
      common(scheme, chart.x_label, chart.y_label) + x_range(chart) + y_range(chart) + names_of_x(chart.x_names);
  if (chart.log_x) text += log_axis("x");
  if (chart.log_y) text += log_axis("y");
  for (double mark : chart.marks)
    text +=
        fmt::format("set arrow from {0}, graph 0 to {0}, graph 1 nohead lc rgb '{1}' lw 1 dt 3\n", mark, scheme.ink);
  std::string plots;
  bool any_open = false;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    any_open |= std::ranges::count(chart.series[i].open, true) > 0;
    text += data_block(chart, i) + infinities(chart, chart.series[i], scheme);
    plots += (i > 0 ? ", " : "") + plot_of(chart.series[i], i, scheme);
  }
  for (const auto& [label, value] : chart.levels) {
    if (!std::isfinite(value)) continue;
    plots += fmt::format(", {} with lines lc rgb '{}' lw 1.2 dt 4 notitle", number(value), scheme.ink);
    text += fmt::format("set label {} at graph 0.01, first {} left offset 0,0.5 textcolor rgb '{}' font ',11'\n",
                        quoted(label), number(value), scheme.ink);
  }
  any_open &= !chart.open_label.empty();
  if (any_open)
    plots += fmt::format(", keyentry with points lc rgb '{}' lw 2 pt 6 ps 0.7 title {}", scheme.ink,
                         quoted(chart.open_label));
  if (!any_open && (chart.series.size() == 1 || !chart.legend)) text += "unset key\n";
  return text + "plot " + plots + "\n";
}

std::string csv(const Chart& chart) {
  std::string text = "series,x,y,low,high\n";
  for (const Series& series : chart.series)
    for (size_t i = 0; i < series.x.size(); ++i)
      text +=
          csv_line({series.label, chart.x_names.empty() ? number(series.x[i]) : chart.x_names.at(size_t(series.x[i])),
                    csv_number(series.y[i]), series.low.empty() ? "" : csv_number(series.low[i]),
                    series.high.empty() ? "" : csv_number(series.high[i])});
  return text;
}

double largest_finite(const HeatMap& map) {
  double largest = -INFINITY;
  for (const std::vector<double>& row : map.values)
    for (double value : row)
      if (std::isfinite(value)) largest = std::max(largest, value);
  return largest;
}

// Columns are places 0, 1, ...; the ticks say what stands there.
std::string script(const HeatMap& map, const Scheme& scheme) {
  const double largest = largest_finite(map);
  if (!(largest > (map.log_color ? 0 : -INFINITY))) return no_values(scheme);
  std::string text = common(scheme, map.x_label, "");
  text += fmt::format(
      "unset grid\nset border 0\nset cblabel {} textcolor rgb '{}'\nset xrange [-0.5:{}]\nset yrange [{}:-0.5]\n"
      "set palette defined (0 '#440154', 0.25 '#3b528b', 0.5 '#21918c', 0.75 '#5ec962', 1 '#fde725')\n",
      quoted(map.value_label), scheme.ink, double(map.x.size()) - 0.5, double(map.rows.size()) - 0.5);
  if (map.log_color) text += "set logscale cb\nset format cb '10^{%L}'\n";
  std::string ticks;
  const size_t every = std::max<size_t>(1, (map.x.size() + 7) / 8);
  for (size_t i = 0; i < map.x.size(); i += every)
    ticks += fmt::format("{}'{}' {}", ticks.empty() ? "" : ", ", number(map.x[i]), i);
  text += "set xtics (" + ticks + ")\nset ytics (";
  const size_t named = (map.rows.size() + kMostHeatRows - 1) / kMostHeatRows;
  for (size_t i = 0; i < map.rows.size(); i += std::max<size_t>(1, named))
    text += fmt::format("{}{} {}", i > 0 ? ", " : "", quoted(map.rows[i]), i);
  text += ")\n$d << EOD\n";
  for (size_t row = 0; row < map.rows.size(); ++row)
    for (size_t i = 0; i < map.x.size(); ++i)
      text += fmt::format("{} {} {}\n", i, row, number(std::min(map.values[row][i], largest)));
  // An image has two rows and two columns at least.
  const bool image = map.rows.size() > 1 && map.x.size() > 1;
  return text + "EOD\nplot $d using 1:2:" +
         (image ? "3 with image notitle\n"
                : "(0.5):(0.5):3 with boxxyerror fillcolor palette fillstyle solid noborder notitle\n");
}

std::string csv(const HeatMap& map) {
  std::vector<std::string> fields = {"row"};
  for (double x : map.x) fields.push_back(number(x));
  std::string text = csv_line(fields);
  for (size_t row = 0; row < map.rows.size(); ++row) {
    fields = {map.rows[row]};
    for (double value : map.values[row]) fields.push_back(csv_number(value));
    text += csv_line(fields);
  }
  return text;
}

template <class Drawing>
Picture drawn(const Drawing& drawing, Size size) {
  return {drawing.name, drawing.title, run_gnuplot(script(drawing, kLight), drawing.name + "_light", size),
          run_gnuplot(script(drawing, kDark), drawing.name + "_dark", size), ""};
}

// The one of several values that stands for all; not a number where none is.
double standing_for_all(const HeatMap& map, std::span<const double> values) {
  double chosen = kNothing;
  for (double value : values) chosen = standing_for(chosen, value, map.keeps_least);
  return chosen;
}

// Of each stretch of points the least, the largest and the first that is no number, in their order.
std::vector<size_t> outstanding(std::span<const double> y, size_t most) {
  constexpr size_t kOfStretch = 3;
  const size_t stretches = std::max<size_t>(1, most / kOfStretch), each = (y.size() + stretches - 1) / stretches;
  std::vector<size_t> chosen;
  for (size_t first = 0; first < y.size(); first += each) {
    const size_t end = std::min(y.size(), first + each);
    std::set<size_t> of_stretch;
    for (bool least : {true, false}) {
      size_t at = first;
      for (size_t i = first; i < end; ++i)
        if (standing_for(y[at], y[i], least) != y[at]) at = i;
      of_stretch.insert(at);
    }
    const auto none = std::find_if(y.begin() + ptrdiff_t(first), y.begin() + ptrdiff_t(end),
                                   [](double value) { return std::isnan(value); });
    if (none != y.begin() + ptrdiff_t(end)) of_stretch.insert(size_t(none - y.begin()));
    chosen.insert(chosen.end(), of_stretch.begin(), of_stretch.end());
  }
  return chosen;
}

}  // namespace

Look look_of(const Series& series) {
  constexpr int kDashes[] = {1, 3, 4, 5}, kPoints[] = {7, 5, 9, 13, 11}, kBaselineDash = 2, kColors = 8;
  const int round = series.color / kColors;
  return {series.color % kColors, series.dashed ? kBaselineDash : kDashes[round % 4], kPoints[round % 5]};
}

Picture draw(const Chart& chart) {
  Chart shown = chart;
  for (Series& series : shown.series) series = thinned(std::move(series), kMostPoints);
  Picture picture = drawn(shown, chart.size);
  picture.csv = csv(chart);
  return picture;
}

Picture draw(const HeatMap& map) {
  constexpr int kRowPixels = 16, kFramePixels = 90, kLeastRows = 8;
  const HeatMap shown = narrowed(map.rows.size() > kMostHeatRows ? grouped(map) : map, kMostColumns);
  const int rows = std::clamp(int(shown.rows.size()), kLeastRows, int(kMostHeatRows));
  Picture picture = drawn(shown, Size{760, kFramePixels + kRowPixels * rows});
  picture.csv = csv(map);
  return picture;
}

Series thinned(Series series, size_t most) {
  if (series.x.size() <= most) return series;
  const std::vector<size_t> kept = outstanding(series.y, most);
  auto keep = [&](auto& values) {
    if (values.empty()) return;
    for (size_t i = 0; i < kept.size(); ++i) values[i] = values[kept[i]];
    values.resize(kept.size());
  };
  keep(series.x), keep(series.y), keep(series.low), keep(series.high), keep(series.open);
  return series;
}

HeatMap narrowed(HeatMap map, size_t most) {
  const size_t columns = map.x.size(), each = (columns + most - 1) / std::max<size_t>(1, most);
  if (columns <= most) return map;
  auto shorten = [&](std::vector<double>& values, auto pick) {
    std::vector<double> shorter;
    for (size_t first = 0; first < columns; first += each)
      shorter.push_back(pick(std::span(values).subspan(first, std::min(each, columns - first))));
    values = std::move(shorter);
  };
  shorten(map.x, [](std::span<const double> x) { return x.back(); });
  for (std::vector<double>& row : map.values)
    shorten(row, [&](std::span<const double> values) { return standing_for_all(map, values); });
  return map;
}

HeatMap grouped(HeatMap map) {
  if (map.groups.empty()) return map;
  std::vector<std::vector<double>> rows;
  for (size_t first = 0; first < map.rows.size(); first += map.group) {
    rows.emplace_back();
    for (size_t column = 0; column < map.x.size(); ++column) {
      std::vector<double> values;
      for (size_t row = first; row < first + map.group; ++row) values.push_back(map.values[row][column]);
      rows.back().push_back(standing_for_all(map, values));
    }
  }
  map.values = std::move(rows);
  map.rows = map.groups;
  return map;
}

}  // namespace keel::lab
