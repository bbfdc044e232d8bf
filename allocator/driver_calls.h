// How often a device was called, and how long that took.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace poolgrad {

/// The calls that a GPU's driver knows; names as in LatencyTable.
struct DriverCalls {
  struct Counter {
    std::uint64_t calls = 0;
    std::uint64_t nanoseconds = 0;
  };

  Counter reserve, unreserve, create, release, map, set_access, unmap;
  Counter event_record, event_query, stream_wait, synchronize;

  Counter total() const {
    Counter sum;
    for (const Counter& counter : {reserve, unreserve, create, release, map, set_access, unmap, event_record,
                                   event_query, stream_wait, synchronize}) {
      sum.calls += counter.calls;
      sum.nanoseconds += counter.nanoseconds;
    }
    return sum;
  }
};

}  // namespace poolgrad
