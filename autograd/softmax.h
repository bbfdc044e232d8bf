// Softmax along one dimension. A slice of -inf gives zeros with zero gradients (log_softmax: -inf, with the gradients
// of the outputs), never NaN.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// exp(x) / sum(exp(x)) along dim, stable.
Tensor softmax(const Tensor& x, std::int64_t dim = -1, CallSite = {});
/// x - log(sum(exp(x))) along dim, stable.
Tensor log_softmax(const Tensor& x, std::int64_t dim = -1, CallSite = {});

}  // namespace poolgrad
