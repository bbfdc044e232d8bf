// Several views of one shape walked together, run by run along their last dimension. Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/view.h"

namespace poolgrad::kernels {

/// Cuts the row-major range [begin, begin + count) of the views, which share a shape, into runs along the last
/// dimension: run(element offsets, strides, length), one offset and stride per view.
template <std::size_t N, class Run>
void for_each_run(const std::array<View, N>& views, std::int64_t begin, std::int64_t count, const Run& run) {
  const View& shape = views[0];
  const int last = shape.rank - 1;
  std::array<std::int64_t, N> offsets{}, strides{};
  if (last < 0) return run(offsets, strides, count);
  std::int64_t index[max_rank] = {};
  for (int d = last; d >= 0; --d) {
    index[d] = d ? begin % shape.shape[d] : begin;
    begin /= shape.shape[d];
    for (std::size_t v = 0; v < N; ++v) offsets[v] += index[d] * views[v].strides[d];
  }
  for (std::size_t v = 0; v < N; ++v) strides[v] = views[v].strides[last];
  const auto move = [&](int d, std::int64_t steps) {
    for (std::size_t v = 0; v < N; ++v) offsets[v] += steps * views[v].strides[d];
  };
  while (true) {
    const std::int64_t length = std::min(count, shape.shape[last] - index[last]);
    run(offsets, strides, length);
    count -= length;
    if (count == 0) return;
    move(last, -index[last]);
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      move(d, 1);
      if (++index[d] < shape.shape[d]) break;
      move(d, -shape.shape[d]);
      index[d] = 0;
    }
  }
}

}  // namespace poolgrad::kernels
