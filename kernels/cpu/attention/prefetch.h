// Fetching rows of memory ahead of their use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

/// Rows of memory that will be packed next, fetched bit by bit meanwhile.
struct Prefetch {
  const char* rows = nullptr;
  std::int64_t stride = 0, bytes = 0, count = 0;

  template <class S>
  static Prefetch make(Head<const S> head, const Progression& run, std::int64_t columns) {
    head = gather(head, run);
    constexpr std::int64_t size = sizeof(S);
    return {reinterpret_cast<const char*>(head.data), head.stride * size, columns * size, run.count};
  }
  void fetch(std::int64_t most) {
    constexpr std::int64_t line = 64;
    for (most = std::min(most, count), count -= most; most > 0; --most, rows += stride)
      for (std::int64_t at = 0; at < bytes; at += line) __builtin_prefetch(rows + at, 0, 2);
  }
};

}  // namespace poolgrad::kernels::attention
