// View arithmetic that gathers and scatters share. Internal to kernels/cpu.
#pragma once

#include "kernels/view.h"

namespace poolgrad::kernels {

/// Negative indices count from the end.
inline std::int64_t wrap(std::int64_t index, std::int64_t limit) { return index < 0 ? index + limit : index; }

/// x at index 0 of dimension `dim`.
inline View without(View x, int dim) {
  for (int d = dim; d + 1 < x.rank; ++d) {
    x.shape[d] = x.shape[d + 1];
    x.strides[d] = x.strides[d + 1];
  }
  --x.rank;
  return x;
}

}  // namespace poolgrad::kernels
