// Sort order for host and device: by key, and equal keys by place. No two elements compare equal, so every sort
// algorithm gives the same, stable order.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/functors/host_device.h"

namespace poolgrad::kernels {

/// An element of a row: its sort key and its place.
struct Placed {
  std::uint64_t key;
  std::int64_t place;

  POOLGRAD_HD friend bool operator<(const Placed& a, const Placed& b) {
    return a.key < b.key || (a.key == b.key && a.place < b.place);
  }
};

inline constexpr std::uint64_t sign_of_key = std::uint64_t{1} << 63;

/// NaN comes last in either direction; -0 equals 0.
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

/// Elements that one GPU block sorts. Longer rows are sorted in such runs and merged in pairs.
inline constexpr std::int64_t sorted_run = 256;
/// Bytes of GPU scratch for merging runs: source and destination.
constexpr std::int64_t argsort_scratch(std::int64_t columns, std::int64_t count) {
  return columns <= sorted_run ? 0 : 2 * count * static_cast<std::int64_t>(sizeof(Placed));
}

}  // namespace poolgrad::kernels
