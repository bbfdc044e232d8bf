// Sums over rows in a fixed order: each chunk of rows has its own partial row, and partial rows are added pairwise.
// Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/parallel.h"

namespace poolgrad::kernels {

/// How many rows go into one partial sum: a function of the shape alone.
struct RowChunks {
  std::int64_t rows, size, count;
  explicit RowChunks(std::int64_t row_count)
      : rows(row_count),
        size(std::max<std::int64_t>(32, (row_count + 255) / 256)),
        count(std::max<std::int64_t>(1, (row_count + size - 1) / size)) {}
  std::int64_t begin(std::int64_t chunk) const { return chunk * size; }
  std::int64_t end(std::int64_t chunk) const { return std::min(rows, (chunk + 1) * size); }
};

/// Combines `count` partial rows of `columns` elements into the first one: neighbours, then neighbours of those, ...
template <class T, class Combine>
void combine_partial_rows(T* partial, std::int64_t count, std::int64_t columns, const Combine& combine) {
  parallel_ranges(columns, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t step = 1; step < count; step *= 2)
      for (std::int64_t row = 0; row + step < count; row += 2 * step) {
        T* to = partial + row * columns;
        const T* from = partial + (row + step) * columns;
#pragma GCC ivdep
        for (std::int64_t c = begin; c < end; ++c) to[c] = combine(to[c], from[c]);
      }
  });
}

}  // namespace poolgrad::kernels
