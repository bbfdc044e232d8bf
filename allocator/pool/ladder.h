// The emergency ladder: what happens when no cached block fits. Rungs in a fixed order, from free of charge to
// expensive; and which of them a pool has for a need, and whom it asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/front/front.h"
#include "allocator/pool/releaser.h"
#include "allocator/rung.h"

namespace poolgrad {

/// One way to get memory. Both functions are called without locks.
struct Rung {
  RungId id = RungId::poll;
  std::string name;
  /// Bytes that it might give now; 0 skips it.
  std::function<std::size_t(Need&)> estimate;
  /// Tries; returns the bytes really released or obtained. May set need.block itself.
  std::function<std::size_t(Need&)> run;
  /// False for a rung that only waits: what it returns means that it is worth to search again, and is no yield.
  bool yields = true;
  /// False for a rung of somebody else's, which may have freed something though it says 0: the climb starts again after
  /// it, and it is not asked again.
  bool trusted = true;
};

/// Climbs rungs until need.block is set. After every rung that yields, `search` (which may set need.block) and then the
/// climb starts again from the first rung, since freed memory may need coalescing, release and commit before it fits.
/// A rung that has yielded as often as there are rungs is not asked again, so a climb always ends. While a rung runs,
/// allocations that this thread makes in any pool use only the rungs below it: climbs inside climbs end, too.
class EmergencyLadder {
 public:
  using Search = std::function<void(Need&)>;
  /// Told after each run of a rung.
  using Observe = std::function<void(const Rung&, std::size_t bytes, std::uint64_t nanoseconds)>;

  /// Returns one yield per rung in order where it failed, which need.block tells, and nothing where it succeeded.
  static std::vector<Yield> climb(const std::vector<Rung>& rungs, Need& need, const Search& search,
                                  const Observe& observe);

  /// While it lives, this thread runs `rung`: whatever it allocates uses only lower ones. Offloading and recomputing
  /// are one level, so neither leads to the other.
  class Running {
   public:
    explicit Running(RungId rung);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::size_t previous_;
  };
};

/// Called without the pool's mutex, which its rungs take.
class Ladder {
 public:
  Ladder(Ground& ground, Arenas& arenas, StreamLedger& ledger, Front& front, PageSupply& pages, Releaser& releaser);

  /// A block for the need among what is cached.
  void search(Need& need);
  /// Climbs until need.block is set; what each rung gave if it is not.
  std::vector<Yield> climb(Need& need);

  void add_client(std::weak_ptr<ReclaimClient> client);
  void set_callback(OutOfMemoryCallback callback);
  /// Asks derived caches for all that they hold. Does nothing while one of them is asked.
  void empty_derived_caches();
  /// Asks clients for what pages are pinned beyond `wanted` bytes, where they can give enough. What went wrong.
  std::vector<std::string> press_pinned_below(std::size_t wanted);

 private:
  std::vector<Rung> own_rungs();
  using Clients = std::vector<std::shared_ptr<ReclaimClient>>;
  /// The pool's own, the clients', and the user's callback.
  std::vector<Rung> rungs_with(const Clients& asked);
  /// Whose price is at most `most`, in the order in which they are asked. None while a derived cache is asked, or any
  /// client for its price.
  Clients clients(double most) const;
  /// What reclaim() gave, by the pool's own count: no more than was given back meanwhile. Nothing where it throws,
  /// which is a remark.
  std::optional<std::size_t> ask(ReclaimClient& client, std::size_t bytes, std::vector<std::string>& remarks);
  /// What estimate() says. An exception is a remark, and 0.
  std::size_t held_by(ReclaimClient& client, std::vector<std::string>& remarks);
  /// Whether `bytes` more fit into the budget (or another) once these have given back all that they say they hold.
  bool may_fit(std::size_t bytes, const Clients& asked, std::vector<std::string>& remarks,
               std::optional<std::size_t> budget = std::nullopt);
  /// Calls f(), the client's, on whose behalf only lower rungs are climbed; nothing where that throws.
  std::optional<std::size_t> call(const ReclaimClient& client, std::vector<std::string>& remarks,
                                  const std::function<std::size_t()>& f);
  /// Before a request is refused, clients whose estimate is zero are asked, too: it may be too low.
  Rung rung_of_those_that_claim_nothing(const Clients& asked);
  std::size_t ask_user(Need& need);
  std::size_t borrow(PoolLock& lock, Need& need);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  Front& front_;
  PageSupply& pages_;
  Releaser& releaser_;
  std::vector<std::weak_ptr<ReclaimClient>> clients_;
  std::shared_ptr<const OutOfMemoryCallback> callback_;  // nullptr: none
  const std::vector<Rung> own_rungs_ = own_rungs();
  const std::vector<Rung> rungs_without_clients_ = rungs_with({});
};

}  // namespace poolgrad
