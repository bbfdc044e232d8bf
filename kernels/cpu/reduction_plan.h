// Partition of rows and reductions. It depends only on the shape, never on threads or devices: sums have one order, and
// every back end makes the same allocations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/functors/host_device.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// A contiguous view as rows of its last dimension.
struct Rows {
  std::int64_t rows = 0, columns = 0;
  explicit Rows(const View& view) : columns(view.rank ? view.shape[view.rank - 1] : 1) {
    rows = 1;
    for (int d = 0; d + 1 < view.rank; ++d) rows *= view.shape[d];
  }
};

/// Number of rows per partial sum over rows.
struct RowChunks {
  std::int64_t rows, size, count;
  explicit RowChunks(std::int64_t row_count)
      : rows(row_count),
        size(std::max<std::int64_t>(32, (row_count + 255) / 256)),
        count(std::max<std::int64_t>(1, (row_count + size - 1) / size)) {}
  POOLGRAD_HD std::int64_t begin(std::int64_t chunk) const { return chunk * size; }
  POOLGRAD_HD std::int64_t end(std::int64_t chunk) const {
    const std::int64_t last = (chunk + 1) * size;
    return last < rows ? last : rows;
  }
};

/// Maximum number of elements of a row per partial result.
inline constexpr std::int64_t segment_size = 32 * 1024;
constexpr std::int64_t segments_of(std::int64_t elements) { return (elements + segment_size - 1) / segment_size; }
inline std::int64_t segments_of_all(std::span<const View> all) {
  std::int64_t segments = 0;
  for (const View& x : all) segments += segments_of(x.count());
  return segments;
}

/// Loop order over x: kept and reduced dimensions separately, each sorted by stride and merged.
///   rows:     x is [kept][reduced]; each result folds consecutive elements, in segments if there are many;
///   columns:  x is [kept outer][reduced][kept inner]; kept inner is adjacent in memory.
struct ReductionPlan {
  View x, out;                           // permuted alike; out has only the kept dimensions
  int outer_rank = 0, reduced_rank = 0;  // dimensions of x, in this order; columns have one more, inner
  std::int64_t outer = 1, reduced = 1, inner = 1;

  bool columns() const { return inner > 1; }
  /// Rows so short that several are read at once without partial results.
  bool has_short_rows() const { return !columns() && reduced > 0 && reduced <= 64; }
  std::int64_t segments() const { return std::max<std::int64_t>(1, segments_of(reduced)); }
  /// Elements of scratch for the partial results.
  std::int64_t workspace_size() const;
};

/// The plan of kernels::reduce(out, x).
ReductionPlan plan_reduction(const View& out, const View& x);

}  // namespace poolgrad::kernels
