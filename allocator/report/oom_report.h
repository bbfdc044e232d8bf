// The text of an OutOfMemoryError: all facts about the failure, and only advice that is known to help.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

/// The yield of a stage during one pass over the reclaim policy, summed over its runs.
struct ReclaimResult {
  std::string stage;
  std::size_t bytes = 0;
  std::size_t runs = 0;
  std::uint64_t nanoseconds = 0;
};

/// A live block that strands free memory: their common handle cannot be released.
struct Pinner {
  Tag tag;
  std::size_t requested = 0;
  std::size_t stranded = 0;  // free bytes in its handles; a share if several blocks hold one
};

/// The state of a pool when a request failed. All sizes in bytes. reserved = live + rounding + pending + releasable +
/// stranded, apart from concurrent operations.
struct OomFacts {
  Device device;
  std::size_t requested = 0;
  std::size_t rounded = 0;
  Tag tag;
  std::size_t budget = 0;
  std::size_t device_free = 0;
  std::size_t reserved = 0;
  std::size_t live = 0;        // as requested
  std::size_t rounding = 0;    // of live blocks, beyond the requested bytes
  std::size_t pending = 0;     // freed, but another stream may still use it
  std::size_t releasable = 0;  // cached, in whole handles
  std::size_t stranded = 0;    // cached, but its handle also holds other blocks
  std::size_t largest_free = 0;
  std::array<std::size_t, category_count> live_by_category{};
  std::map<std::uint32_t, std::size_t> live_by_scope;  // by interned id
  std::vector<Pinner> pinners;                         // any order
  std::vector<ReclaimResult> yields;
  std::string requester;             // function and line; "" if unknown
  std::vector<std::string> remarks;  // about clients and addresses, a sentence each
  /// Pages to commit for the request; 0 if no number of pages would help.
  std::size_t missing_pages = 0;
  /// Remedies proved by replay, one line each.
  std::vector<std::string> advice;
};

/// One fact per line. Ends with advice only if it is known to help: remedies proved by replay, and a larger budget if
/// it would have held the request.
std::string oom_report(const OomFacts& facts);

}  // namespace poolgrad
