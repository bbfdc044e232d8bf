// Changes of dtype and device; the gradient is cast or moved back.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// x itself when nothing changes.
Tensor to(const Tensor& x, DType dtype, CallSite = {});
Tensor to(const Tensor& x, Device device, CallSite = {});

}  // namespace poolgrad
