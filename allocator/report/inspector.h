// Inspects a pool: statistics, snapshots, traces, and the report on a failed request. Each result is consistent:
// concurrent operations wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/front/front.h"
#include "allocator/pool/plan.h"
#include "allocator/report/snapshot.h"
#include "allocator/report/statistics.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// Takes the pool's mutex; CachingAllocator documents the functions.
class Inspector {
 public:
  Inspector(Ground& ground, const Arenas& arenas, const StreamLedger& ledger, Front& front, const PageSupply& pages,
            const Releaser& releaser, const Plan& plan)
      : ground_(ground),
        arenas_(arenas),
        ledger_(ledger),
        front_(front),
        pages_(pages),
        releaser_(releaser),
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
  std::string report(const Need& need, std::vector<Yield> yields);

 private:
  void survey(Statistics& statistics) const;
  /// With the numbers of scratch blocks for traces, or 0 for them for snapshots.
  std::vector<BlockSnapshot> all_blocks(bool number_scratch) const;
  /// Settings that would have helped, proved by replays of the recorded history.
  std::vector<std::string> advice(const Need& need) const;

  Ground& ground_;
  const Arenas& arenas_;
  const StreamLedger& ledger_;
  Front& front_;
  const PageSupply& pages_;
  const Releaser& releaser_;
  const Plan& plan_;
};

}  // namespace poolgrad
