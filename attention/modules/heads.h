// Heads side by side in one tensor: splits a packed projection and joins its gradient, both without a copy.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Returns packed (B, T, H, D) as views of `heads[i]` heads each; the sum of heads is H. The backward pass makes no
/// copy if the gradients already lie side by side, as those of attend() do. Throws ShapeError.
std::vector<Tensor> split_heads(const Tensor& packed, const std::vector<std::int64_t>& heads);

/// Returns the tensor (B, T, sum of heads, D) if `parts` are its slices in this order and without gaps; otherwise an
/// undefined tensor. No gradient record.
Tensor joined_heads(const std::vector<Tensor>& parts);

/// Returns uninitialized row-major tensors shaped like `likes`. Neighbors that lie side by side again share one buffer,
/// so that joined_heads() finds it.
std::vector<Tensor> empty_like_heads(const std::vector<Tensor>& likes);

/// Returns N of x (B, N, width), or 0 for another x, which a projection refuses.
inline std::int64_t steps_of(const Tensor& x) { return x.defined() && x.dim() == 3 ? x.size(1) : 0; }

}  // namespace poolgrad::attention
