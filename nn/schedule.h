// Learning rates over time.
#pragma once

#include <cstdint>

namespace poolgrad::nn {

/// Linear warm-up over `warmup` steps to `peak`, then half a cosine down to `floor * peak` at the last of `steps`
/// (Loshchilov & Hutter 2017). Steps count from 1; without warm-up the first is at the peak, and beyond the last the
/// rate stays.
struct CosineSchedule {
  double peak = 3e-3;
  std::int64_t warmup = 20;
  std::int64_t steps = 1000;
  double floor = 0.1;

  double rate(std::int64_t step) const;
};

}  // namespace poolgrad::nn
