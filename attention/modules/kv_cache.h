// Keys and values of a sequence that grows position by position.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad::attention {

/// `buffer` (B, capacity, H, D) holds the first `length` positions of a sequence (undefined: none yet). Writes those of
/// x (B, T, H, D) behind them and returns all length + T as a view. The buffer grows by half when it is full, so that a
/// sequence of n positions is copied O(1) times; one that somebody else holds is left as it is and replaced by a copy.
/// Where gradients are wanted the parts are concatenated instead. Throws ShapeError, DTypeError, DeviceError.
Tensor append_positions(Tensor& buffer, std::int64_t length, const Tensor& x);

}  // namespace poolgrad::attention
