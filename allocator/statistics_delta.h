// A thread's share of a pool's statistics: what has changed since it was last added to them. Plain stores, and as few
// as possible.
//
// What is added is exact. Peaks are exact as long as one thread uses the pool: the highest point of each share is kept.
// With several, a share is added before its thread touches the arenas, so it never holds more than what the thread's
// magazines could take: a peak may be off by that much (4 MiB for each thread and stream).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "allocator/statistics.h"

namespace poolgrad {

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

  /// Adds everything to `statistics` and starts anew; returns the number of allocations and frees. Without
  /// `by_category`, categories are left out.
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
      gauge.peak = std::max(gauge.peak, gauge.current + static_cast<std::uint64_t>(peak));
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
