// Several tensors into one; the gradients of the parts are views of the whole one.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// Along an existing dimension; all other sizes equal.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// Along a new dimension; all shapes equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// `before` and `after` elements of `value` around dimension dim.
Tensor pad(const Tensor& x, std::int64_t dim, std::int64_t before, std::int64_t after, double value = 0.0,
           CallSite = {});

}  // namespace poolgrad
