// Rows that hold a NaN or an infinity. A weight of 0 hides a finite row from those that do not see it, but 0 times NaN
// is NaN. So where a tile is not seen by all, such rows count as zero in the packed operand, and reach those that see
// them one by one.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

/// Numbers of rows of a tile, ascending.
struct WildRows {
  static constexpr std::int64_t most = 192;
  std::int64_t count;
  std::int16_t row[most];
};

template <class S>
bool all_finite(Head<const S> from, std::int64_t count, std::int64_t columns) {
  using T = Compute<S>;
  Vec<T> sum[2] = {};  // 0 x is 0, or NaN
  for (std::int64_t i = 0; i < count; ++i) {
    const S* row = from.row(i);
    std::int64_t j = 0;
    for (; j + 2 * lanes<T> <= columns; j += 2 * lanes<T>)
      for (int v = 0; v < 2; ++v) sum[v] += T{} * simd::load<T>(row + j + v * lanes<T>);
    for (; j < columns; j += lanes<T>) sum[0] += T{} * simd::load_partial<T>(row + j, columns - j);
  }
  return simd::sum<T>(sum[0] + sum[1]) == T{};
}

/// The rows that are not finite: of most tiles none, which one pass over them says.
template <class S>
void find_wild_rows(Head<const S> from, std::int64_t count, std::int64_t columns, WildRows& wild) {
  wild.count = 0;
  if (all_finite(from, count, columns)) return;
  for (std::int64_t i = 0; i < count; ++i)
    if (!all_finite(Head<const S>{from.row(i), from.stride}, 1, columns))
      wild.row[wild.count++] = static_cast<std::int16_t>(i);
}

/// A row of what pack_rows() made becomes 0.
template <class T>
void clear_packed_row(T* packed, std::int64_t row, std::int64_t columns, std::int64_t panel) {
  for (std::int64_t j = 0; j < columns; j += group_lanes<T>, packed += panel)
    std::fill_n(packed + row * group_lanes<T>, group_lanes<T>, T{});
}

}  // namespace poolgrad::kernels::attention
