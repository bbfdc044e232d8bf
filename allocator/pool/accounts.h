// The counters of a pool, and their updates by allocations and frees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "allocator/heap/block.h"
#include "allocator/reclaim_stage.h"
#include "allocator/report/statistics.h"

namespace poolgrad {

/// Guarded by the pool's mutex. Other code increments independent counters directly.
struct Accounts : Statistics {
  explicit Accounts(bool by_category) : by_category_(by_category) {}

  /// Allocations and frees; hot paths count once they are added up.
  std::uint64_t tick = 0;

  /// Counts a cache hit, or a miss.
  void hit(Category category) {
    ++pool_hits;
    if (by_category_) ++category_hits[static_cast<std::size_t>(category)];
  }
  void missed(Category category) {
    if (by_category_) ++category_misses[static_cast<std::size_t>(category)];
  }
  /// The block became live with its `requested` bytes and tag; was freed, its bytes still active; is no longer active.
  void handed_out(const Block& block) {
    allocation.add(1);
    allocated_bytes.add(block.size);
    requested_bytes.add(block.requested);
    active_bytes.add(block.size);
    if (by_category_) category_bytes[static_cast<std::size_t>(block.tag.category)].add(block.requested);
  }
  void given_back(const Block& block) {
    ++tick;
    allocation.subtract(1);
    allocated_bytes.subtract(block.size);
    requested_bytes.subtract(block.requested);
    if (by_category_) category_bytes[static_cast<std::size_t>(block.tag.category)].subtract(block.requested);
  }
  void no_longer_active(std::size_t bytes) { active_bytes.subtract(bytes); }
  /// Adds the recent hot-path work of a thread.
  void add_up(StatisticsDelta& recent) { tick += recent.add_to(*this, by_category_); }
  void ran(ReclaimStageId stage, std::size_t bytes, std::uint64_t nanoseconds) {
    for (std::size_t i = stages.size(); i < reclaim_stage_count; ++i)
      stages.push_back({.name = std::string(to_string(static_cast<ReclaimStageId>(i)))});
    ReclaimStatistics& of_stage = stages[static_cast<std::size_t>(stage)];
    of_stage.bytes += bytes;
    of_stage.runs += 1;
    of_stage.nanoseconds += nanoseconds;
  }
  /// Resets the peaks to the current values.
  void reset_peaks() {
    for (Gauge* gauge : {&allocation, &allocated_bytes, &requested_bytes, &reserved_bytes, &active_bytes})
      gauge->peak = gauge->current;
    for (Gauge& gauge : category_bytes) gauge.peak = gauge.current;
  }
  /// Resets all counters.
  void restart() { *this = Accounts(by_category_); }

 private:
  bool by_category_;
};

}  // namespace poolgrad
