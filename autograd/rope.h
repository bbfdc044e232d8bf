// Rotary position embedding (Su et al. 2021).
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// Rotates the pairs (d, d + D/2) of x (B, T, H, D) by (position + t) * base^(-2 d / D). D even. The gradient is the
/// inverse rotation.
Tensor rope(const Tensor& x, std::int64_t position = 0, double base = 10000.0, CallSite = {});

}  // namespace poolgrad
