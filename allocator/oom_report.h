// The text of an OutOfMemoryError: everything needed to see why, and advice only where it is known to be true.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device.h"
#include "allocator/emergency_ladder.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

/// A snapshot of a pool at the moment a climb failed. All sizes in bytes.
struct OomFacts {
  Device device;
  std::size_t requested = 0;
  std::size_t rounded = 0;
  Tag tag;
  std::size_t budget = 0;
  std::size_t device_free = 0;
  std::size_t reserved = 0;
  std::size_t live = 0;
  std::size_t cached = 0;
  std::size_t pending = 0;
  std::size_t largest_free = 0;
  std::array<std::size_t, category_count> live_by_category{};
  std::vector<std::pair<std::string, std::size_t>> live_by_scope;  // any order
  std::vector<Yield> yields;
  /// Pages that would have to be committed for the request; 0 if no number of pages would help.
  std::size_t missing_pages = 0;
};

/// One fact per line. Ends with a line of advice if and only if a larger budget would have held the request.
std::string oom_report(const OomFacts& facts);

}  // namespace poolgrad
