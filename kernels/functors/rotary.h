// Angles of rotary positions (RoPE, Su et al. 2021), with extensions to contexts longer than in training. Host and
// device.
#pragma once

#include "kernels/functors/attention_term.h"
#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

/// Pair d of D / 2 rotates by of(base^(-2 d / D), d) per position and is scaled by `magnitude`.
struct RotaryFrequencies {
  double base = 10000;
  /// Pairs up to `kept` keep their frequency. Pairs from `stretched` on multiply theirs by `stretch`. In between, the
  /// factor is linear in the pair index.
  double stretch = 1, kept = -1, stretched = -1;
  double magnitude = 1;

  RotaryFrequencies() = default;
  RotaryFrequencies(double plain_base) : base(plain_base) {}

  POOLGRAD_HD double of(double frequency, std::int64_t pair) const {
    const auto d = static_cast<double>(pair);
    if (stretch == 1 || d <= kept) return frequency;
    const double ramp = d >= stretched ? 1 : (d - kept) / (stretched - kept);
    return frequency * (1 - ramp + ramp * stretch);
  }
};

/// Positions of the steps of a sequence: consecutive from a first position, or given by a map of its rows.
struct RotaryPositions {
  PositionMap map;

  RotaryPositions(std::int64_t first) : map(PositionMap::contiguous(far_away, first)) {}
  RotaryPositions(const PositionMap& rows) : map(rows) {}

  POOLGRAD_HD double of(std::int64_t step) const { return static_cast<double>(map.position(step)); }
};

}  // namespace poolgrad::kernels
