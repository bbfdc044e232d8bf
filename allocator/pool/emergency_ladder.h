// What happens when no cached block fits: rungs in a fixed order, from free of charge to expensive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/rung.h"
#include "allocator/stream.h"

namespace poolgrad {

/// An allocation that found no block.
struct Need {
  std::size_t requested = 0;  // bytes asked for
  std::size_t size = 0;       // rounded to the granule
  std::size_t alignment = 0;
  Stream stream;
  Tag tag;
  bool may_reclaim = true;              // clients and the user's callback may be asked
  double priority = 0;                  // clients above this price per byte are not
  int attempts = 0;                     // times that the user's callback was asked
  bool refused = false;                 // the budget or the device refused new memory
  bool device_full = false;             // the device itself refused memory that the budget would have allowed
  std::uint64_t device_calls_seen = 0;  // calls of all threads that had ended when the budget was last looked at
  Block* block = nullptr;               // the result, busy, once there is one
};

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

/// What a rung gave during one climb, summed over its runs.
struct Yield {
  std::string rung;
  std::size_t bytes = 0;
  std::size_t runs = 0;
  std::uint64_t nanoseconds = 0;
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

}  // namespace poolgrad
