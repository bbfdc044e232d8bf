// Dropout by counter.
#pragma once

#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p). The mask is a function of the
/// generator's range, so nothing is stored and recomputation gives the same bits. p == 0 returns x.
Tensor dropout(const Tensor& x, double p, Generator& generator = default_generator(), CallSite = {});

}  // namespace poolgrad
