#include "nn/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace poolgrad::nn {

double CosineSchedule::rate(std::int64_t step) const {
  const std::int64_t top = std::max<std::int64_t>(warmup, 1);  // the step at the peak
  if (step <= top) return peak * static_cast<double>(step) / static_cast<double>(top);
  const double span = static_cast<double>(std::max<std::int64_t>(steps - top, 1));
  const double progress = std::min(1.0, static_cast<double>(step - top) / span);
  return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace poolgrad::nn
