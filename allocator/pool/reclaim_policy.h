// The reclaim policy: stages that get memory when no cached block fits, in a fixed order from free to expensive; and
// the selection of stages and clients for a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/pool/cache_trimmer.h"
#include "allocator/reclaim_stage.h"
#include "allocator/report/oom_report.h"
#include "allocator/thread_cache/thread_caches.h"

namespace poolgrad {

/// A way to get memory. Both functions are called without locks.
struct ReclaimStage {
  ReclaimStageId id = ReclaimStageId::poll;
  std::string name;
  /// An estimate of the bytes that it can yield now; 0 skips it.
  std::function<std::size_t(AllocationAttempt&)> estimate;
  /// Tries; returns the bytes released or obtained. May set attempt.block itself.
  std::function<std::size_t(AllocationAttempt&)> run;
  /// False for a stage that only waits: a nonzero result means to search again, and is not counted as yield.
  bool yields = true;
  /// False for a stage outside the pool, which may have freed memory although it returns 0: the reclaim policy starts
  /// again after it and does not repeat it.
  bool trusted = true;
};

/// Runs stages until attempt.block is set. After each stage that yields, calls `search`, which may set attempt.block,
/// and starts again from the first stage. Freed memory may need coalescing, release and commit before it fits. A stage
/// that has yielded as often as there are stages is skipped, so this always ends. Allocations by a running stage, in
/// any pool, use only lower stages, so nested calls end too.
class ReclaimLoop {
 public:
  using Search = std::function<void(AllocationAttempt&)>;
  /// Called after each run of a stage.
  using Observe = std::function<void(const ReclaimStage&, std::size_t bytes, std::uint64_t nanoseconds)>;

  /// On failure (attempt.block is null) returns one yield per stage in order; on success, nothing.
  static std::vector<ReclaimResult> reclaim(const std::vector<ReclaimStage>& stages, AllocationAttempt& attempt,
                                            const Search& search, const Observe& observe);

  /// Marks that this thread runs `stage` for its lifetime: its allocations use only lower stages. Offload and recompute
  /// share a level, so neither triggers the other.
  class Running {
   public:
    explicit Running(ReclaimStageId stage);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::size_t previous_;
  };
};

/// Called without the pool's mutex, which its stages take.
class ReclaimPolicy {
 public:
  ReclaimPolicy(PoolContext& context, Arenas& arenas, StreamTracker& tracker, ThreadCaches& caches, PageProvider& pages,
                CacheTrimmer& trimmer);

  /// Searches cached memory for a block for the request.
  void search(AllocationAttempt& attempt);
  /// Runs stages until attempt.block is set; returns the yield of each if it is not.
  std::vector<ReclaimResult> reclaim(AllocationAttempt& attempt);

  void add_client(std::weak_ptr<ReclaimClient> client);
  void set_callback(OutOfMemoryCallback callback);
  /// Asks derived caches for all their memory. Does nothing while one of them is asked.
  void empty_derived_caches();
  /// Asks clients for memory if more than `wanted` bytes of pages are pinned and their estimates suffice. Returns
  /// errors.
  std::vector<std::string> press_pinned_below(std::size_t wanted);

 private:
  std::vector<ReclaimStage> own_stages();
  using Clients = std::vector<std::shared_ptr<ReclaimClient>>;
  /// The stages of the pool, the clients, and the user's callback.
  std::vector<ReclaimStage> stages_with(const Clients& asked);
  /// Clients with a price of at most `most`, in the order of asking. None while a derived cache, or any client's price,
  /// is asked.
  Clients clients(double most) const;
  /// The result of reclaim(), limited to the bytes that the pool counted as freed. None if it throws, which adds a
  /// remark.
  std::optional<std::size_t> ask(ReclaimClient& client, std::size_t bytes, std::vector<std::string>& remarks);
  /// The result of estimate(); 0 and a remark if it throws.
  std::size_t held_by(ReclaimClient& client, std::vector<std::string>& remarks);
  /// Whether `bytes` more fit into the budget (or another one) if these clients free all their estimates.
  bool may_fit(std::size_t bytes, const Clients& asked, std::vector<std::string>& remarks,
               std::optional<std::size_t> budget = std::nullopt);
  /// Calls the client's f(), in which only lower stages run; none if it throws.
  std::optional<std::size_t> call(const ReclaimClient& client, std::vector<std::string>& remarks,
                                  const std::function<std::size_t()>& f);
  /// Asks clients with an estimate of 0 before a request fails: the estimate may be too low.
  ReclaimStage last_resort_stage(const Clients& asked);
  std::size_t ask_user(AllocationAttempt& attempt);
  std::size_t borrow(PoolLock& lock, AllocationAttempt& attempt);

  PoolContext& context_;
  Arenas& arenas_;
  StreamTracker& tracker_;
  ThreadCaches& caches_;
  PageProvider& pages_;
  CacheTrimmer& trimmer_;
  std::vector<std::weak_ptr<ReclaimClient>> clients_;
  std::shared_ptr<const OutOfMemoryCallback> callback_;  // nullptr: none
  const std::vector<ReclaimStage> own_stages_ = own_stages();
  const std::vector<ReclaimStage> stages_without_clients_ = stages_with({});
};

}  // namespace poolgrad
