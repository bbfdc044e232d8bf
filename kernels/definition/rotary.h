// The angles of rotary positions (RoPE, Su et al. 2021), also where contexts are longer than a model was trained on.
// Host and device.
#pragma once

#include "kernels/definition/attention_term.h"
#include "kernels/definition/host_device.h"

namespace poolgrad::kernels {

/// Pair d of D / 2 turns by of(base^(-2 d / D)) at each position, and is made longer by `magnitude`.
struct RotaryFrequencies {
  double base = 10000;
  // Frequencies are multiplied by `stretch` up to `slow`, not at all from `fast` on, and by something between them.
  double stretch = 1, slow = 0, fast = 0;
  double magnitude = 1;

  RotaryFrequencies() = default;
  RotaryFrequencies(double plain_base) : base(plain_base) {}

  POOLGRAD_HD double of(double frequency) const {
    if (stretch == 1 || frequency >= fast) return frequency;
    const double kept = frequency <= slow ? 0 : (frequency - slow) / (fast - slow);
    return frequency * (kept + (1 - kept) * stretch);
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
