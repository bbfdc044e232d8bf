#include "examples/support/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace poolgrad::examples {

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string format_count(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string sparkline(const std::vector<double>& values, std::size_t width) {
  static constexpr const char* levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty()) return "";
  const std::size_t buckets = std::min(width, values.size());
  std::vector<double> means;
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t begin = b * values.size() / buckets, end = (b + 1) * values.size() / buckets;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double range = *high - *low;
  std::string text;
  for (const double mean : means)
    text += levels[range > 0 ? static_cast<std::size_t>(std::clamp((mean - *low) / range * 7.999, 0.0, 7.0)) : 0];
  return text;
}

std::string bar(double fraction, int width) {
  const int filled = std::clamp(static_cast<int>(fraction * width), 0, width);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '-'));
}

void Progress::line(const std::string& text) {
  clear();
  out_ << text << std::endl;
}

void Progress::status(const std::string& text) {
  if (!live_) return;
  out_ << "\r\x1b[K" << text << std::flush;
  drawn_ = true;
}

bool Progress::is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void Progress::clear() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace poolgrad::examples
