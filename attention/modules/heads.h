// Heads side by side in one tensor: splitting a packed projection and putting its gradient together again, both
// without a copy.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::attention {

/// packed (B, T, H, D) as views of `heads[i]` heads each, whose sum is H. The backward makes no copy where the
/// gradients lie side by side already, as those of attend() do. Throws ShapeError.
std::vector<Tensor> split_heads(const Tensor& packed, const std::vector<std::int64_t>& heads);

/// The tensor (B, T, sum of heads, D) that `parts` are slices of, in this order and without gaps; undefined where they
/// are none. No gradient record.
Tensor joined_heads(const std::vector<Tensor>& parts);

/// Uninitialised row-major tensors shaped like `likes`. Those of neighbours that are side by side share one buffer in
/// the same way, so that joined_heads() finds it.
std::vector<Tensor> empty_like_heads(const std::vector<Tensor>& likes);

// Keys and values of a sequence that grows position by position.

/// `buffer` (B, capacity, H, D) holds the first `length` positions of a sequence (undefined: none yet). Writes those of
/// x (B, T, H, D) behind them and returns all length + T as a view. The buffer grows by half when it is full, so that a
/// sequence of n positions is copied O(1) times; one that somebody else holds is left as it is and replaced by a copy.
/// Where gradients are wanted the parts are concatenated instead. Throws ShapeError, DTypeError, DeviceError.
Tensor append_positions(Tensor& buffer, std::int64_t length, const Tensor& x);

}  // namespace poolgrad::attention
