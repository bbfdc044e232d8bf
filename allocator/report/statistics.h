// Counters of a pool, with PyTorch's names and meanings where they exist.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"

namespace poolgrad {

/// Current value, peak, and the sums of all increases and decreases.
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

/// Totals of a stage of the reclaim policy.
struct ReclaimStatistics {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t runs = 0;
  std::uint64_t nanoseconds = 0;
};

/// Memory of a stream: blocks that its queued work may use or used last.
struct StreamStatistics {
  std::uint64_t stream = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t cached_bytes = 0;  // including magazines
  std::uint64_t pending_bytes = 0;
};

/// All bytes, counts or nanoseconds. "Blocks" are those of the pool, rounded to its granule.
struct Statistics {
  Gauge allocation;                                             // live blocks (a count)
  Gauge allocated_bytes;                                        // live, rounded to the block
  Gauge requested_bytes;                                        // live, as requested
  Gauge reserved_bytes;                                         // committed on the device: live + cached + pending
  Gauge active_bytes;                                           // live or pending
  std::array<Gauge, category_count> category_bytes;             // requested bytes by Category
  std::array<std::uint64_t, category_count> category_hits{};    // requests served without a device call
  std::array<std::uint64_t, category_count> category_misses{};  // the other requests
  std::uint64_t requests = 0;                                   // allocations requested
  std::uint64_t pool_hits = 0;                                  // served from cached blocks
  std::uint64_t magazine_hits = 0;                              // of these, from a thread's own blocks
  std::uint64_t num_device_alloc = 0;                           // commits
  std::uint64_t num_device_free = 0;                            // decommits
  std::uint64_t num_alloc_retries = 0;  // refused commits, after which cached memory was released or moved
  std::uint64_t num_ooms = 0;
  std::uint64_t num_client_failures = 0;  // exceptions of clients, which the pool ignored
  std::uint64_t events_recorded = 0;
  std::uint64_t num_sync_all_streams = 0;  // waits for all streams with pending blocks
  std::uint64_t planned_hits = 0;          // requests that got their planned addresses
  std::uint64_t plan_divergences = 0;      // requests outside the plan, or with an occupied address
  std::uint64_t plans = 0;                 // steps that were recorded and packed
  std::uint64_t driver_calls = 0;          // calls that map, unmap or move memory
  std::uint64_t driver_nanoseconds = 0;    // time in driver calls
  std::vector<ReclaimStatistics> stages;   // in the order of the reclaim policy

  // Measured when statistics are read.
  std::uint64_t magazine_bytes = 0;        // cached, in magazines
  std::uint64_t pending_bytes = 0;         // freed, waiting for another stream
  std::uint64_t inactive_split = 0;        // cached blocks that share a page with blocks in use (a count)
  std::uint64_t inactive_split_bytes = 0;  // cached bytes that cannot be released: stranded
  std::uint64_t largest_free_bytes = 0;    // the longest run of cached blocks
  std::uint64_t segments = 0;              // runs of committed pages
  std::uint64_t bookkeeping_bytes = 0;     // heap memory of the pool's bookkeeping, without traces
  std::vector<StreamStatistics> streams;   // by id

  double hit_rate() const { return requests ? static_cast<double>(pool_hits) / static_cast<double>(requests) : 1.0; }
  std::uint64_t cached_bytes() const { return reserved_bytes.current - active_bytes.current; }
  /// Peak of active over peak of reserved bytes; 1 if nothing was reserved.
  double utilisation() const { return share(active_bytes.peak, reserved_bytes.peak, 1.0); }
  /// Rounding: the part of the allocated bytes that was not requested.
  double internal_fragmentation() const {
    return share(allocated_bytes.current - requested_bytes.current, allocated_bytes.current, 0.0);
  }
  /// The part of the reserved bytes that is cached.
  double external_fragmentation() const { return share(cached_bytes(), reserved_bytes.current, 0.0); }
  /// The part of the reserved bytes that is cached but cannot be released.
  double stranded_fragmentation() const { return share(inactive_split_bytes, reserved_bytes.current, 0.0); }
  /// TensorFlow's BFC definition: the part of the cached bytes outside the largest run.
  double bfc_fragmentation() const { return share(cached_bytes() - largest_free_bytes, cached_bytes(), 0.0); }

 private:
  static double share(std::uint64_t part, std::uint64_t whole, double otherwise) {
    return whole ? static_cast<double>(part) / static_cast<double>(whole) : otherwise;
  }
};

/// Every value under PyTorch's name if it has one ("allocated_bytes.all.current", "num_ooms"), else under its own
/// ("category_bytes.gradient.peak", "stage.commit.runs", "stream.7.live_bytes"). Always the same order.
std::vector<std::pair<std::string, std::uint64_t>> named_statistics(const Statistics& statistics);

// A thread's unreported share of a pool's statistics, kept with few plain stores.
//
// Sums are exact. Peaks are exact while one thread uses the pool: each share keeps its highest point. With several
// threads, a share is added before its thread touches the arenas, so it never holds more than the thread's magazines
// could take. A peak may be off by that much (4 MiB for each thread and stream).

class StatisticsDelta {
 public:
  void allocate(std::uint64_t block_bytes, std::uint64_t requested, Category category) noexcept {
    count_.rise(1);
    blocks_.rise(block_bytes);
    block_bytes_added_ += block_bytes;
    requested_.rise(requested);
    Share& share = categories_[static_cast<std::size_t>(category)];
    share.bytes.rise(requested);
    share.added += requested;
    ++share.hits;
    touched_ |= std::uint32_t{1} << static_cast<unsigned>(category);
  }
  void release(std::uint64_t block_bytes, std::uint64_t requested, Category category) noexcept {
    count_.fall(1);
    blocks_.fall(block_bytes);
    requested_.fall(requested);
    categories_[static_cast<std::size_t>(category)].bytes.fall(requested);
    touched_ |= std::uint32_t{1} << static_cast<unsigned>(category);
  }

  /// Adds all values to `statistics` and resets them; returns the number of allocations and frees. Leaves out
  /// categories if not `by_category`.
  std::uint64_t add_to(Statistics& statistics, bool by_category) noexcept {
    if (touched_ == 0) return 0;
    std::uint64_t hits = 0;
    std::uint64_t requested = 0;
    for (; touched_ != 0; touched_ &= touched_ - 1) {
      const auto index = static_cast<std::size_t>(std::countr_zero(touched_));
      Share& share = categories_[index];
      hits += share.hits;
      requested += share.added;
      if (by_category) {
        share.bytes.add_to(statistics.category_bytes[index], share.added);
        statistics.category_hits[index] += share.hits;
      }
      share = Share{};
    }
    const auto operations = 2 * hits - static_cast<std::uint64_t>(count_.now);
    count_.add_to(statistics.allocation, hits);
    blocks_.add_to(statistics.allocated_bytes, block_bytes_added_);
    blocks_.add_to(statistics.active_bytes, block_bytes_added_);
    requested_.add_to(statistics.requested_bytes, requested);
    statistics.requests += hits;
    statistics.pool_hits += hits;
    statistics.magazine_hits += hits;
    count_ = blocks_ = requested_ = {};
    block_bytes_added_ = 0;
    return operations;
  }

 private:
  struct Level {
    std::int64_t now = 0;
    std::int64_t peak = 0;

    void rise(std::uint64_t amount) noexcept {
      now += static_cast<std::int64_t>(amount);
      if (now > peak) peak = now;
    }
    void fall(std::uint64_t amount) noexcept { now -= static_cast<std::int64_t>(amount); }
    void add_to(Gauge& gauge, std::uint64_t added) const noexcept {
      const std::uint64_t highest = gauge.current + static_cast<std::uint64_t>(peak);
      if (highest > gauge.peak) gauge.peak = highest;
      gauge.current += static_cast<std::uint64_t>(now);
      gauge.allocated += added;
      gauge.freed += added - static_cast<std::uint64_t>(now);
    }
  };
  struct Share {
    Level bytes;
    std::uint64_t added = 0;
    std::uint64_t hits = 0;
  };

  Level count_;
  Level blocks_;
  Level requested_;
  std::uint64_t block_bytes_added_ = 0;
  std::uint32_t touched_ = 0;  // categories
  std::array<Share, category_count> categories_;
};

}  // namespace poolgrad
