#include "framework/lab/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/lab/csv.h"

namespace keel::lab {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

// A text in gnuplot's quotes; what its enhanced mode would read as markup is escaped.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char letter : text) {
    if (std::string("_^{}@&~").find(letter) != std::string::npos) out += "\\\\";
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  return out + "\"";
}

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.7g}", value) : "NaN";
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

std::string data_block(const Series& series, size_t index) {
  std::string text = fmt::format("$d{} << EOD\n", index);
  for (size_t i = 0; i < series.x.size(); ++i) {
    text += number(series.x[i]) + " " + number(series.y[i]);
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
  std::string text = common(scheme, chart.x_label, chart.y_label) + x_range(chart) + names_of_x(chart.x_names);
  if (chart.log_x) text += log_axis("x");
  if (chart.log_y) text += log_axis("y");
  for (double mark : chart.marks)
    text +=
        fmt::format("set arrow from {0}, graph 0 to {0}, graph 1 nohead lc rgb '{1}' lw 1 dt 3\n", mark, scheme.ink);
  std::string plots;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    text += data_block(chart.series[i], i);
    plots += (i > 0 ? ", " : "") + plot_of(chart.series[i], i, scheme);
  }
  for (const auto& [label, value] : chart.levels) {
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
      text += csv_line({series.label,
                        chart.x_names.empty() ? number(series.x[i]) : chart.x_names[size_t(series.x[i] + 0.5)],
                        number(series.y[i]), series.low.empty() ? "" : number(series.low[i]),
                        series.high.empty() ? "" : number(series.high[i])});
  return text;
}

// Columns are places 0, 1, ...; the ticks say what stands there.
std::string script(const HeatMap& map, const Scheme& scheme) {
  std::string text = common(scheme, map.x_label, "");
  text += fmt::format(
      "unset grid\nset border 0\nset cblabel {} textcolor rgb '{}'\nset xrange [-0.5:{}]\nset yrange [{}:-0.5]\n"
      "set palette defined (0 '#440154', 0.25 '#3b528b', 0.5 '#21918c', 0.75 '#5ec962', 1 '#fde725')\n",
      quoted(map.value_label), scheme.ink, double(map.x.size()) - 0.5, double(map.rows.size()) - 0.5);
  if (map.log_color) text += "set logscale cb\nset format cb '10^{%L}'\n";
  std::string ticks;
  const size_t every = std::max<size_t>(1, (map.x.size() + 7) / 8);
  for (size_t i = 0; i < map.x.size(); i += every)
    ticks += fmt::format("{}\"{}\" {}", ticks.empty() ? "" : ", ", number(map.x[i]), i);
  text += "set xtics (" + ticks + ")\nset ytics (";
  for (size_t i = 0; i < map.rows.size(); ++i)
    text += fmt::format("{}{} {}", i > 0 ? ", " : "", quoted(map.rows[i]), i);
  text += ")\n$d << EOD\n";
  for (size_t row = 0; row < map.rows.size(); ++row)
    for (size_t i = 0; i < map.x.size(); ++i) text += fmt::format("{} {} {}\n", i, row, number(map.values[row][i]));
  return text + "EOD\nplot $d using 1:2:3 with image notitle\n";
}

std::string csv(const HeatMap& map) {
  std::vector<std::string> fields = {"row"};
  for (double x : map.x) fields.push_back(number(x));
  std::string text = csv_line(fields);
  for (size_t row = 0; row < map.rows.size(); ++row) {
    fields = {map.rows[row]};
    for (double value : map.values[row]) fields.push_back(number(value));
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
