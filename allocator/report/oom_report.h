// The text of an OutOfMemoryError: everything needed to see why, and advice only where it is known to be true.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/device.h"
#include "allocator/memory_scope.h"
#include "allocator/pool/ground.h"

namespace poolgrad {

/// A block that keeps free memory from being used elsewhere: the handle that holds both cannot be given back.
struct Pinner {
  Tag tag;
  std::size_t requested = 0;
  std::size_t stranded = 0;  // free bytes in its handles; where several blocks hold one, its share
};

/// A snapshot of a pool at the moment a climb failed. All sizes in bytes.
/// reserved = live + rounding + pending + releasable + stranded, but for what other threads are doing.
struct OomFacts {
  Device device;
  std::size_t requested = 0;
  std::size_t rounded = 0;
  Tag tag;
  std::size_t budget = 0;
  std::size_t device_free = 0;
  std::size_t reserved = 0;
  std::size_t live = 0;        // as asked for
  std::size_t rounding = 0;    // what live blocks have beyond that
  std::size_t pending = 0;     // given back, but another stream may still use it
  std::size_t releasable = 0;  // cached, in whole handles
  std::size_t stranded = 0;    // cached, but its handle holds something else, too
  std::size_t largest_free = 0;
  std::array<std::size_t, category_count> live_by_category{};
  std::map<std::uint32_t, std::size_t> live_by_scope;  // by interned id
  std::vector<Pinner> pinners;                         // any order
  std::vector<Yield> yields;
  std::string requester;             // function and line; "": not known
  std::vector<std::string> remarks;  // of clients and addresses, a sentence each
  /// Pages that would have to be committed for the request; 0 if no number of pages would help.
  std::size_t missing_pages = 0;
  /// What was found out by trying, one line each.
  std::vector<std::string> advice;
};

/// One fact per line. Ends with lines of advice if and only if they are known to be true: those that were found out by
/// trying, and a larger budget, if it would have held the request.
std::string oom_report(const OomFacts& facts);

}  // namespace poolgrad
