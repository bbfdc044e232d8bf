// Index rules of gathers and scatters, for host and device: negative indices, bounds and error messages.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/functors/host_device.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Negative indices count from the end.
POOLGRAD_HD constexpr std::int64_t wrapped(std::int64_t index, std::int64_t limit) {
  return index < 0 ? index + limit : index;
}
/// Whether it is in [0, limit).
POOLGRAD_HD constexpr bool is_within(std::int64_t index, std::int64_t limit) {
  return static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(limit);
}

/// Removes dimension `dim` from x, at its index 0.
inline View without(View x, int dim) {
  for (int d = dim; d + 1 < x.rank; ++d) {
    x.shape[d] = x.shape[d + 1];
    x.strides[d] = x.strides[d + 1];
  }
  --x.rank;
  return x;
}

/// Reduces x to its last dimension.
inline View last_dimension(View x) {
  x.shape[0] = x.shape[x.rank - 1];
  x.strides[0] = x.strides[x.rank - 1];
  x.rank = 1;
  return x;
}

/// An index outside [lowest, limit): its value and its row-major position among indices of that shape.
struct IndexFault {
  const char* op = nullptr;
  const char* what = nullptr;
  std::int64_t limit = 0, lowest = 0;
  int rank = 0;
  std::int64_t shape[max_rank] = {};
  std::int64_t value = 0, position = 0;

  IndexFault() = default;
  IndexFault(const char* whose, const char* kind, const View& index, std::int64_t below, std::int64_t from = 0)
      : op(whose), what(kind), limit(below), lowest(from), rank(index.rank) {
    for (int d = 0; d < rank; ++d) shape[d] = index.shape[d];
  }
  /// "[embedding] index 300 at position (0, 17) is outside [0, 256)".
  std::string describe() const {
    std::string text = "[";  // separate pieces: GCC 12 warns about a sum
    for (const char* piece : {op, "] ", what, " "}) text += piece;
    text += std::to_string(value);
    text += " at position (";
    std::int64_t inner = 1, rest = position;
    for (int d = 1; d < rank; ++d) inner *= shape[d];
    for (int d = 0; d < rank; ++d) {
      text += std::to_string(rest / inner);
      text += d + 1 < rank ? ", " : rank == 1 ? "," : "";
      rest %= inner;
      if (d + 1 < rank) inner /= shape[d + 1];
    }
    text += ") is outside [";
    text += std::to_string(lowest);
    text += ", ";
    text += std::to_string(limit);
    text += ")";
    return text;
  }
};

/// A scatter along a dimension has `lines` lines of `steps` indices each. On a GPU one thread walks each line. If lines
/// are few and long, the GPU sorts all indices by destination instead. Both add in the same order.
constexpr bool scatter_walks(std::int64_t lines, std::int64_t steps) { return steps <= 128 || lines >= 4096; }

/// Bytes of scratch to sort `n` keys on a GPU.
constexpr std::int64_t sorting_scratch(std::int64_t n) {
  return 2 * n * static_cast<std::int64_t>(sizeof(std::int64_t));
}

}  // namespace poolgrad::kernels
