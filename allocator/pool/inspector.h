// Inspects a pool: statistics, snapshots, traces, and the report on a failed request. Each result is consistent:
// concurrent operations wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/pool/plan.h"
#include "allocator/report/oom_report.h"
#include "allocator/report/snapshot.h"
#include "allocator/report/statistics.h"
#include "allocator/thread_cache/thread_caches.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// Takes the pool's mutex; CachingAllocator documents the functions.
class Inspector {
 public:
  Inspector(PoolContext& context, const Arenas& arenas, const StreamTracker& tracker, ThreadCaches& caches,
            const PageProvider& pages, const CacheTrimmer& trimmer, const Plan& plan)
      : context_(context),
        arenas_(arenas),
        tracker_(tracker),
        caches_(caches),
        pages_(pages),
        trimmer_(trimmer),
        plan_(plan) {}

  Statistics statistics() const;
  void reset_peaks();
  std::uint64_t active_bytes() const;
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();
  std::vector<BlockSnapshot> snapshot() const;
  void start_trace(std::size_t events);
  void stop_trace();
  bool tracing() const;
  Trace trace() const;
  /// Explains the failed request.
  std::string report(const AllocationAttempt& attempt, std::vector<ReclaimResult> yields);

 private:
  void survey(Statistics& statistics) const;
  /// With the numbers of scratch blocks for traces, or 0 for them for snapshots.
  std::vector<BlockSnapshot> all_blocks(bool number_scratch) const;
  /// Settings that would have helped, proved by replays of the recorded history.
  std::vector<std::string> advice(const AllocationAttempt& attempt) const;

  PoolContext& context_;
  const Arenas& arenas_;
  const StreamTracker& tracker_;
  ThreadCaches& caches_;
  const PageProvider& pages_;
  const CacheTrimmer& trimmer_;
  const Plan& plan_;
};

}  // namespace poolgrad
