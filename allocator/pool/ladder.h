// The emergency ladder of a pool: which rungs it has for a need, in which order, and whom it asks.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "allocator/front/front.h"
#include "allocator/pool/emergency_ladder.h"
#include "allocator/pool/releaser.h"
#include "allocator/reclaim_client.h"

namespace poolgrad {

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
  /// Asks clients for what pages are pinned beyond `wanted` bytes.
  void press_pinned_below(std::size_t wanted);

 private:
  std::vector<Rung> own_rungs();
  /// The pool's own, the clients', and the user's callback.
  std::vector<Rung> rungs_with(const std::vector<std::shared_ptr<ReclaimClient>>& asked);
  /// Whose price is at most `most`, in the order in which they are asked.
  std::vector<std::shared_ptr<ReclaimClient>> clients(double most) const;
  std::size_t ask_user(Need& need);
  std::size_t borrow(PoolLock& lock, Need& need);

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  Front& front_;
  PageSupply& pages_;
  Releaser& releaser_;
  std::vector<std::weak_ptr<ReclaimClient>> clients_;
  OutOfMemoryCallback callback_;
  const std::vector<Rung> own_rungs_ = own_rungs();
  const std::vector<Rung> rungs_without_clients_ = rungs_with({});
};

}  // namespace poolgrad
