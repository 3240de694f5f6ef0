// What reports show as pictures: lines over a common axis, and heat maps. The numbers of each go into a CSV file.
#pragma once

#include <vector>

#include "framework/lab/gnuplot.h"

namespace keel::lab {

struct Series {
  std::string label;
  std::vector<double> x, y;
  std::vector<double> low, high;  // ends of error bars; or empty
  double aside = 0;               // drawn to the right by this share of x, or of the place of a name
  int color = 0;                  // of the scheme
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
  Size size = {};
};

// values[row][column]; not a number: an empty place.
struct HeatMap {
  std::string name, title, x_label, value_label;
  std::vector<double> x;          // of the columns
  std::vector<std::string> rows;  // from the top down
  std::vector<std::vector<double>> values;
  bool log_color = false;
};

struct Picture {
  std::string name, title;
  std::string light, dark;  // SVG
  std::string csv;
};

// Infinite values stand as a sign at the upper edge, in heat maps in the colour of the largest that is finite. Where
// there is nothing to draw, the picture says so.
Picture draw(const Chart& chart);
Picture draw(const HeatMap& map);

// At most `most` columns, each the largest of those it stands for: peaks stay.
HeatMap narrowed(HeatMap map, size_t most);

}  // namespace keel::lab
