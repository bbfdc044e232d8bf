// What a pool has done, with PyTorch's names and meanings where they exist.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/memory_scope.h"

namespace poolgrad {

/// Bytes (or counts) now, at most, and summed over all increases and decreases.
struct Gauge {
  std::uint64_t current = 0;
  std::uint64_t peak = 0;
  std::uint64_t allocated = 0;
  std::uint64_t freed = 0;

  void add(std::uint64_t amount) {
    current += amount;
    allocated += amount;
    if (current > peak) peak = current;
  }
  void subtract(std::uint64_t amount) {
    current -= amount;
    freed += amount;
  }
};

/// What a rung of the emergency ladder has given so far.
struct RungStatistics {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t runs = 0;
  std::uint64_t nanoseconds = 0;
};

struct Statistics {
  Gauge allocated_bytes;                             // handed out, rounded to the block
  Gauge requested_bytes;                             // handed out, as asked for
  Gauge reserved_bytes;                              // committed on the device: live + cached + pending
  Gauge active_bytes;                                // allocated or waiting for another stream
  std::array<Gauge, category_count> category_bytes;  // requested bytes by Category
  std::uint64_t requests = 0;                        // allocations asked for
  std::uint64_t pool_hits = 0;                       // served without a device call
  std::uint64_t num_device_alloc = 0;                // commits
  std::uint64_t num_device_free = 0;                 // decommits
  std::uint64_t num_alloc_retries = 0;               // times the ladder was needed
  std::uint64_t num_ooms = 0;
  std::uint64_t events_recorded = 0;
  std::uint64_t num_sync_all_streams = 0;  // times all streams with pending blocks were waited for
  std::uint64_t driver_calls = 0;          // calls that map, unmap or move memory
  std::uint64_t driver_nanoseconds = 0;    // in them
  std::vector<RungStatistics> rungs;       // in the order of the ladder

  double hit_rate() const { return requests ? static_cast<double>(pool_hits) / static_cast<double>(requests) : 1.0; }
  std::uint64_t cached_bytes() const { return reserved_bytes.current - active_bytes.current; }
};

}  // namespace poolgrad
