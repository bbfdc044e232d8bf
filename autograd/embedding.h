// Table lookup.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

/// out = table[index]: index (...) i64, table (V, C) -> (..., C). Rows equal to `padding` get no gradient.
Tensor embedding(const Tensor& table, const Tensor& index, std::int64_t padding = -1, CallSite = {});

}  // namespace poolgrad
