#include "framework/lab/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/lab/csv.h"

namespace keel::lab {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

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
                          number(place_of(chart, series, i)), scheme.series[series.color % 8]);
  return text;
}

std::string data_block(const Chart& chart, size_t index) {
  const Series& series = chart.series[index];
  std::string text = fmt::format("$d{} << EOD\n", index);
  for (size_t i = 0; i < series.x.size(); ++i) {
    text += number(place_of(chart, series, i)) + " " + number(series.y[i]);
    if (!series.low.empty()) text += " " + number(series.low[i]) + " " + number(series.high[i]);
    text += "\n";
  }
  return text + "EOD\n";
}

std::string plot_of(const Series& series, size_t index, const Scheme& scheme) {
  const std::string look = fmt::format("lc rgb '{}' lw 2 dt {} pt 7 ps {}", scheme.series[series.color % 8],
                                       series.dashed ? 2 : 1, series.line ? 0.5 : 0.9);
  const char* style = series.line ? (series.points ? "linespoints" : "lines") : "points";
  if (!series.low.empty()) style = series.line ? "yerrorlines" : "yerrorbars";
  return fmt::format("$d{} using {} with {} {} title {}", index, series.low.empty() ? "1:2" : "1:2:3:4", style, look,
                     quoted(series.label));
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

std::string names_of_x(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = "set xtics (";
  for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{}{} {}", i > 0 ? ", " : "", quoted(names[i]), i);
  return text + ")\n";
}

std::string script(const Chart& chart, const Scheme& scheme) {
  if (!has_values(chart)) return no_values(scheme);
  std::string text = common(scheme, chart.x_label, chart.y_label) + x_range(chart) + names_of_x(chart.x_names);
  if (chart.log_x) text += log_axis("x");
  if (chart.log_y) text += log_axis("y");
  for (double mark : chart.marks)
    text +=
        fmt::format("set arrow from {0}, graph 0 to {0}, graph 1 nohead lc rgb '{1}' lw 1 dt 3\n", mark, scheme.ink);
  std::string plots;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    text += data_block(chart, i) + infinities(chart, chart.series[i], scheme);
    plots += (i > 0 ? ", " : "") + plot_of(chart.series[i], i, scheme);
  }
  for (const auto& [label, value] : chart.levels) {
    if (!std::isfinite(value)) continue;
    plots += fmt::format(", {} with lines lc rgb '{}' lw 1.2 dt 4 notitle", number(value), scheme.ink);
    text += fmt::format("set label {} at graph 0.01, first {} left offset 0,0.5 textcolor rgb '{}' font ',11'\n",
                        quoted(label), number(value), scheme.ink);
  }
  if (chart.series.size() == 1 || !chart.x_names.empty()) text += "unset key\n";
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
  for (size_t i = 0; i < map.rows.size(); ++i)
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
          run_gnuplot(script(drawing, kDark), drawing.name + "_dark", size), csv(drawing)};
}

}  // namespace

Picture draw(const Chart& chart) {
  return drawn(chart, chart.size);
}

Picture draw(const HeatMap& map) {
  constexpr int kRowPixels = 16, kFramePixels = 90, kLeastRows = 8;
  const int rows = std::max(kLeastRows, int(map.rows.size()));
  return drawn(map, Size{760, kFramePixels + kRowPixels * rows});
}

HeatMap narrowed(HeatMap map, size_t most) {
  const size_t columns = map.x.size(), each = (columns + most - 1) / std::max<size_t>(1, most);
  if (columns <= most) return map;
  auto shorten = [&](std::vector<double>& values, auto pick) {
    std::vector<double> shorter;
    for (size_t first = 0; first < columns; first += each)
      shorter.push_back(pick(values.begin() + std::ptrdiff_t(first),
                             values.begin() + std::ptrdiff_t(std::min(columns, first + each))));
    values = std::move(shorter);
  };
  shorten(map.x, [](auto first, auto last) { return *(last - 1) * (first != last); });
  for (std::vector<double>& row : map.values)
    shorten(row, [](auto first, auto last) {
      double largest = kNothing;
      for (; first != last; ++first)
        if (!(*first <= largest)) largest = std::isnan(*first) ? largest : *first;
      return largest;
    });
  return map;
}

}  // namespace keel::lab
