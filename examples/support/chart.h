// Line charts as SVG, to stand in a page of html.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace poolgrad::examples {

/// x, y with x rising. Points that are not finite are left out.
using Points = std::vector<std::pair<double, double>>;

/// Means of at most `most` equal shares of the points.
Points thinned(const Points& points, std::size_t most);
/// The mean of each point and the `window` - 1 before it.
Points running_mean(const Points& points, std::size_t window);

struct Series {
  enum class Kind { line, faint, dots };  // dots are joined by a line

  std::string name;
  Points points;
  int colour = 0;  // 0 to 5
  Kind kind = Kind::line;
};

/// A dashed line across, named at its right end.
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
  bool whole_x = false;                                         // x are whole numbers, and so are those at the axis
  double width = 440, height = 230;                             // of the drawing; a page scales it
  std::function<std::string(double)> x_text = {}, y_text = {};  // numbers as they are where there is none
};

/// The colours of series and of all that a chart is made of, and the class "charts": as many beside each other as the
/// window has room for.
std::string_view chart_style();
/// Axes, levels, series and, where there are several, a legend of as many lines as it needs. The values at a place are
/// shown where a pointer rests.
/// "" where there is no point to show.
std::string chart_svg(const Chart& chart);
/// The same as a file of its own, which is light or dark as its reader prefers.
std::string chart_file(const Chart& chart);

}  // namespace poolgrad::examples
