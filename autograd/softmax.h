// Softmax along one dimension. A slice of -inf gives zeros (log_softmax: -inf) and zero gradients, never NaN.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

Tensor softmax(const Tensor& x, std::int64_t dim = -1);
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1);

}  // namespace poolgrad
