// The gradient of slicing: pieces put back where they came from.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// A tensor of `shape` that holds parts[i] along `dim` at starts[i], starts[i] + step, ..., and `value` elsewhere. An
/// undefined part leaves `value`. At least one part is defined. No gradient record.
Tensor assembled(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
                 std::int64_t step = 1, double value = 0.0, std::source_location at = std::source_location::current());

/// assembled() with zeros, differentiable: the gradient of a part is its slice. Backward of slice, select and split.
Tensor place(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
             std::int64_t step = 1);

}  // namespace poolgrad
