#include "nn/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::nn {

namespace {

constexpr std::pair<Schedule::Kind, const char*> schedule_names[] = {{Schedule::Kind::cosine, "cosine"},
                                                                     {Schedule::Kind::linear, "linear"},
                                                                     {Schedule::Kind::constant, "constant"},
                                                                     {Schedule::Kind::wsd, "wsd"}};

}  // namespace

double Schedule::rate(std::int64_t step) const {
  step = std::min(step, std::max<std::int64_t>(steps, 1));
  const std::int64_t top = std::max<std::int64_t>(warmup, 1);  // the step at the peak
  if (step <= top) return peak * static_cast<double>(step) / static_cast<double>(top);
  if (kind == Kind::constant) return peak;
  const std::int64_t last_at_peak =
      kind == Kind::wsd ? std::max(top, steps - std::lround(decay * static_cast<double>(steps))) : top;
  const double span = static_cast<double>(std::max<std::int64_t>(steps - last_at_peak, 1));
  const double progress = std::max(0.0, static_cast<double>(step - last_at_peak) / span);
  if (kind != Kind::cosine) return peak * (floor + (1.0 - floor) * (1.0 - progress));
  return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

Schedule::Kind Schedule::parse(const std::string& text) {
  for (const auto& [kind, name] : schedule_names)
    if (text == name) return kind;
  throw ValueError("[schedule] it must be cosine, linear, constant or wsd, but is " + printable(text));
}

std::string to_string(Schedule::Kind kind) {
  for (const auto& [known, name] : schedule_names)
    if (kind == known) return name;
  return "invalid";
}

}  // namespace poolgrad::nn
