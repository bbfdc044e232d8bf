#include "examples/support/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "examples/support/console.h"
#include "examples/support/svg.h"

namespace poolgrad::examples {

namespace {

constexpr double left = 58, right = 24, bottom = 38, line_height = 14, legend_line = 18;
constexpr std::size_t most_points = 800, most_places = 120;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return !(low <= high); }
};

/// One axis: maps values to [0, 1].
struct Axis {
  bool log = false;
  Range range = {};

  double at(double value) const {
    const double span = scaled(range.high) - scaled(range.low);
    return span > 0 ? (scaled(value) - scaled(range.low)) / span : 0.5;
  }
  double scaled(double value) const { return log ? std::log2(value) : value; }
  double back(double place) const {
    const double value = scaled(range.low) + place * (scaled(range.high) - scaled(range.low));
    return log ? std::exp2(value) : value;
  }
};

/// About `count` round numbers in the range, at least `least` apart.
std::vector<double> round_numbers(const Range& range, double count, double least = 1e-12) {
  const double rough = std::max((range.high - range.low) / count, least);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double m : {5.0, 2.0, 1.0})
    if (m * power >= rough * 0.999) step = m * power;
  std::vector<double> result;
  for (double n = std::ceil(range.low / step - 1e-9); n * step <= range.high + 1e-9 * step; ++n)
    result.push_back(n * step + 0.0);  // not -0
  return result;
}

/// About `count` powers of `base`: every N-th one, or with 2 and 5 in between if there are few powers of ten.
std::vector<double> powers(const Range& range, double base, double count) {
  std::vector<double> result;
  const double first = std::ceil(std::log(range.low) / std::log(base) - 1e-9);
  const double last = std::floor(std::log(range.high) / std::log(base) + 1e-9);
  if (base == 10 && last - first < 2)
    for (double n = first - 1; n <= last; ++n)
      for (const double m : {1.0, 2.0, 5.0})
        if (const double value = m * std::pow(base, n); value >= range.low * 0.999 && value <= range.high * 1.001)
          result.push_back(value);
  if (!result.empty()) return result;
  const double every = std::max(1.0, std::ceil((last - first) / count));
  for (double n = first; n <= last; n += every) result.push_back(std::pow(base, n));
  return result;
}

std::string plain(double value) { return fmt::format("{:.4g}", value); }

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart), x_{.log = chart.log_x}, y_{.log = chart.log_y} {
    for (const Series& series : chart.series) {
      Points points;
      for (const auto& [x, y] : series.points)
        if (std::isfinite(x) && std::isfinite(y) && (!chart.log_x || x > 0) && (!chart.log_y || y > 0)) {
          points.emplace_back(x, y);
          x_.range.take(x);
          y_.range.take(y);
        }
      points_.push_back(std::move(points));
    }
    if (empty()) return;
    for (const Level& level : chart.levels) y_.range.take(level.y);
    if (chart.from_zero) y_.range.take(0);
    const double room = chart.log_y ? 1.1 : 0.04 * (y_.range.high - y_.range.low);
    if (chart.log_y) {
      y_.range = {y_.range.low / room, y_.range.high * room};
    } else {
      y_.range = {chart.from_zero ? y_.range.low : y_.range.low - room, y_.range.high + room};
      if (y_.range.low == y_.range.high) y_.range.high += 1;
    }
  }

  bool empty() const { return x_.range.empty(); }

  std::string body() const {
    std::string text = axes() + levels();
    for (std::size_t i = 0; i < points_.size(); ++i) text += curve(chart_.series[i], points_[i]);
    return text + legend() + places();
  }

 private:
  double x(double value) const { return left + (chart_.width - left - right) * x_.at(value); }
  double y(double value) const { return chart_.height - bottom - (chart_.height - top - bottom) * y_.at(value); }
  std::string x_text(double value) const { return chart_.x_text ? chart_.x_text(value) : plain(value); }
  std::string y_text(double value) const { return chart_.y_text ? chart_.y_text(value) : plain(value); }

  std::string axes() const {
    const double floor = chart_.height - bottom, wide = chart_.width - left - right;
    std::string text;
    for (const double t : y_.log ? powers(y_.range, 10, 5) : round_numbers(y_.range, (floor - top) / 40))
      text += svg_line("grid", left, y(t), left + wide, y(t)) + svg_text("end quiet", left - 7, y(t) + 4, y_text(t));
    for (const double t :
         x_.log ? powers(x_.range, 2, wide / 60) : round_numbers(x_.range, wide / 80, chart_.whole_x ? 1 : 1e-12))
      text += svg_line("grid", x(t), floor, x(t), floor + 4) + svg_text("middle quiet", x(t), floor + 17, x_text(t));
    return text + svg_text("end quiet", left + wide, chart_.height - 5, chart_.x_name);
  }

  /// From the lowest up: moves overlapping labels upwards.
  std::string levels() const {
    std::vector<Level> rising = chart_.levels;
    std::ranges::stable_sort(rising, {}, &Level::y);
    std::string text;
    double name = std::numeric_limits<double>::infinity();
    for (const Level& level : rising) {
      name = std::min(y(level.y) - 4, name - line_height);
      text += svg_line("level", left, y(level.y), chart_.width - right, y(level.y)) +
              svg_text("end quiet", chart_.width - right, name, level.name);
    }
    return text;
  }

  std::string curve(const Series& series, const Points& all) const {
    const Points points = thinned(all, most_points);
    std::string list, dots;
    for (const auto& [px, py] : points) {
      list += fmt::format("{:.1f},{:.1f} ", x(px), y(py));
      dots += fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>", series.colour, x(px), y(py));
    }
    const bool dotted = (series.kind == Series::Kind::dots && points.size() <= 80) || points.size() == 1;
    return fmt::format("<polyline class=\"c{}{}\" points=\"{}\"/>{}\n", series.colour,
                       series.kind == Series::Kind::faint ? " faint" : "", list, dotted ? dots : "");
  }

  std::string legend() const {
    if (chart_.series.size() < 2) return "";
    std::string text;
    for_each_name([&](const Series& series, double at, double y) {
      text += svg_line(fmt::format("c{}{}", series.colour, series.kind == Series::Kind::faint ? " faint" : ""), at,
                       y - 4, at + 16, y - 4) +
              svg_text("", at + 21, y, series.name);
    });
    return text;
  }

  /// Calls f(series, x, y of its legend line) and returns the last y.
  template <class F>
  double for_each_name(const F& f) const {
    double at = left, y = 15;
    for (const Series& series : chart_.series) {
      const double wide = 38 + 7.8 * static_cast<double>(series.name.size());
      if (at > left && at + wide - 12 > chart_.width) {
        at = left;
        y += legend_line;
      }
      f(series, at, y);
      at += wide;
    }
    return y;
  }

  double below_legend() const {
    if (chart_.series.size() < 2) return 10;
    return 11 + for_each_name([](const Series&, double, double) {});
  }

  /// Hover areas that show the values.
  std::string places() const {
    const double wide = chart_.width - left - right;
    std::size_t most = 0;
    for (const Points& points : points_) most = std::max(most, points.size());
    const std::size_t count = std::min(most, most_places);
    std::string text;
    for (std::size_t i = 0; i < count; ++i) {
      const double share = 1.0 / static_cast<double>(count), middle = (static_cast<double>(i) + 0.5) * share;
      const double value = x_.back(count == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(count - 1));
      std::string title;
      for (std::size_t s = 0; s < points_.size(); ++s) {
        const Points& points = points_[s];
        if (points.empty()) continue;
        const auto after = std::ranges::lower_bound(points, value, {}, &Points::value_type::first);
        auto nearest = after == points.end() ? after - 1 : after;
        if (nearest != points.begin() && value - (nearest - 1)->first < nearest->first - value) --nearest;
        if (title.empty()) title = chart_.x_name + " " + x_text(nearest->first);
        title += "\n" + chart_.series[s].name + " " + y_text(nearest->second);
      }
      text += fmt::format(
          "<rect class=\"place\" x=\"{:.1f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{}</title></rect>\n",
          left + (middle - share / 2) * wide, top, share * wide, chart_.height - top - bottom, escaped(title));
    }
    return text;
  }

  const Chart& chart_;
  const double top = below_legend();
  Axis x_, y_;
  std::vector<Points> points_;
};

}  // namespace

Points thinned(const Points& points, std::size_t most) {
  if (points.size() <= most || most == 0) return points;
  Points result;
  for (std::size_t share = 0; share < most; ++share) {
    const std::size_t begin = points.size() * share / most, end = points.size() * (share + 1) / most;
    double x = 0, y = 0;
    for (std::size_t i = begin; i < end; ++i) {
      x += points[i].first;
      y += points[i].second;
    }
    const auto count = static_cast<double>(end - begin);
    result.emplace_back(x / count, y / count);
  }
  return result;
}

Points running_mean(const Points& points, std::size_t window) {
  Points result;
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    sum += points[i].second;
    if (i >= window) sum -= points[i - window].second;
    result.emplace_back(points[i].first, sum / static_cast<double>(std::min(i + 1, window)));
  }
  return result;
}

std::string chart_svg(const Chart& chart) {
  const Drawing drawing(chart);
  return drawing.empty() ? "" : svg_picture(chart.width, chart.height, chart.x_name, drawing.body());
}

std::string chart_file(const Chart& chart) {
  const Drawing drawing(chart);
  return svg_file(chart.width, chart.height, chart.x_name, drawing.empty() ? "" : drawing.body());
}

}  // namespace poolgrad::examples
