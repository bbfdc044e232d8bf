// The order in which sorts put elements, host and device alike: by key, and equal ones by place. No two are equal then,
// so that whatever way of sorting gives the same, and the stable order.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/definition/host_device.h"

namespace poolgrad::kernels {

/// An element of a row: the whole number that it is ordered by, and its place.
struct Placed {
  std::uint64_t key;
  std::int64_t place;

  POOLGRAD_HD friend bool operator<(const Placed& a, const Placed& b) {
    return a.key < b.key || (a.key == b.key && a.place < b.place);
  }
};

inline constexpr std::uint64_t sign_of_key = std::uint64_t{1} << 63;

/// NaN comes last in either direction; -0 is 0.
POOLGRAD_HD inline std::uint64_t order_key(double x, bool descending) {
  if (x != x) return ~std::uint64_t{0};
  const auto bits = std::bit_cast<std::uint64_t>(x + 0.0);
  const std::uint64_t key = bits & sign_of_key ? ~bits : bits | sign_of_key;
  return descending ? ~key : key;
}
POOLGRAD_HD inline std::uint64_t order_key(float x, bool descending) {
  return order_key(static_cast<double>(x), descending);
}
POOLGRAD_HD inline std::uint64_t order_key(std::int64_t x, bool descending) {
  const std::uint64_t key = static_cast<std::uint64_t>(x) ^ sign_of_key;
  return descending ? ~key : key;
}

/// Elements that a block of a GPU sorts by itself. Longer rows are sorted in such runs, which are then merged two by
/// two.
inline constexpr std::int64_t sorted_run = 256;
/// Bytes that a GPU needs for that: from where the runs are merged, and to where.
constexpr std::int64_t argsort_scratch(std::int64_t columns, std::int64_t count) {
  return columns <= sorted_run ? 0 : 2 * count * static_cast<std::int64_t>(sizeof(Placed));
}

}  // namespace poolgrad::kernels
