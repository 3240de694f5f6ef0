// What reports show as pictures: lines over a common axis, and heat maps. The numbers of each go into a CSV file.
#pragma once

#include <vector>

#include "framework/lab/gnuplot.h"

namespace keel::lab {

struct Series {
  std::string label;
  std::vector<double> x, y;
  std::vector<double> low, high;  // ends of error bars; or empty
  std::vector<bool> open;         // points that are drawn as rings; or empty
  double aside = 0;               // drawn to the right by this share of x, or of the place of a name
  int color = 0;                  // of the scheme; from 8 on with another dash and point
  bool line = true;
  bool points = false;
  bool dashed = false;
};

struct Chart {
  std::string name;  // of its files: letters, digits, '_'
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Series> series;
  std::vector<std::pair<std::string, double>> levels;  // horizontal lines, with labels
  std::vector<double> marks;                           // vertical lines: events
  std::vector<std::string> x_names;                    // in place of numbers: x is 0, 1, ...
  std::string open_label;                              // what open points are, for the legend
  bool legend = true;                                  // of two series or more; where x names them it says nothing new
  Size size = {};
};

// How a series is drawn, in gnuplot's numbers; as many as one chart has differ in at least one of them.
struct Look {
  int color = 0, dash = 1, point = 7;  // an open point is the number before
};
Look look_of(const Series& series);

// values[row][column]; not a number: an empty place.
struct HeatMap {
  std::string name, title, x_label, value_label;
  std::vector<double> x;          // of the columns
  std::vector<std::string> rows;  // from the top down
  std::vector<std::vector<double>> values;
  size_t group = 1;                 // rows that may be drawn as one: heads of a layer
  std::vector<std::string> groups;  // their names; one per `group` rows, or empty
  bool log_color = false;
  bool keeps_least = false;  // of values that are drawn as one, the least counts: collapses stay, not peaks
};

inline constexpr size_t kMostHeatRows = 128;  // above it rows are drawn by groups

struct Picture {
  std::string name, title;
  std::string light, dark;  // SVG
  std::string csv;
};

// Infinite values stand as a sign at the upper edge, in heat maps in the colour of the largest that is finite. Where
// there is nothing to draw, the picture says so. A heat map is drawn with at most 160 columns and, where its rows
// have groups, kMostHeatRows rows; a series with at most about 2,000 points. Their numbers are all in the CSV.
Picture draw(const Chart& chart);
Picture draw(const HeatMap& map);

// About `most` points or fewer: of each stretch the least and the largest, and one that is no number.
Series thinned(Series series, size_t most);
// At most `most` columns, each the largest, or least, of those it stands for.
HeatMap narrowed(HeatMap map, size_t most);
// One row per group.
HeatMap grouped(HeatMap map);

}  // namespace keel::lab
