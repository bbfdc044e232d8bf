// The angles of rotary positions (RoPE, Su et al. 2021), also where contexts are longer than a model was trained on.
// Host and device.
#pragma once

#include "kernels/definition/attention_term.h"
#include "kernels/definition/host_device.h"

namespace poolgrad::kernels {

/// Pair d of D / 2 turns by of(base^(-2 d / D), d) at each position, and is made longer by `magnitude`.
struct RotaryFrequencies {
  double base = 10000;
  /// Pairs up to `kept` keep their frequency, those from `stretched` on have it multiplied by `stretch`. The factor is
  /// linear in the pair between them.
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

/// Where the steps of a sequence lie: one after another from a position on, or as a map of its rows says.
struct RotaryPositions {
  PositionMap map;

  RotaryPositions(std::int64_t first) : map(PositionMap::contiguous(far_away, first)) {}
  RotaryPositions(const PositionMap& rows) : map(rows) {}

  POOLGRAD_HD double of(std::int64_t step) const { return static_cast<double>(map.position(step)); }
};

}  // namespace poolgrad::kernels
