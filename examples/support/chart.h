// Line charts, for pages and files (svg.h).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace poolgrad::examples {

/// x, y with x rising. Skips points that are not finite.
using Points = std::vector<std::pair<double, double>>;

/// Means of at most `most` equal groups of points.
Points thinned(const Points& points, std::size_t most);
/// The mean of each point and the `window` - 1 points before it.
Points running_mean(const Points& points, std::size_t window);

struct Series {
  enum class Kind { line, faint, dots };  // dots: joined by a line

  std::string name;
  Points points;
  int colour = 0;  // 0 to 5
  Kind kind = Kind::line;
};

/// A dashed horizontal line with a label at its right end.
struct Level {
  std::string name;
  double y = 0;
};

struct Chart {
  std::string x_name;
  std::vector<Series> series;
  std::vector<Level> levels = {};
  bool log_x = false;  // powers of two
  bool log_y = false;  // powers of ten
  bool from_zero = false;
  bool whole_x = false;                                         // x values and tick labels are integers
  double width = 440, height = 230;                             // of the drawing; a page scales it
  std::function<std::string(double)> x_text = {}, y_text = {};  // null: plain numbers
};

/// Axes, levels, series and, for several series, a legend with as many lines as it needs. Shows the values at the
/// pointer. "" without points.
std::string chart_svg(const Chart& chart);
/// The same as a file.
std::string chart_file(const Chart& chart);

}  // namespace poolgrad::examples
