// Those who hold memory that they could do without: derived caches (workspaces, tables), tensors that can be offloaded
// or recomputed. They register with a pool and are asked when an allocation would otherwise fail.
#pragma once

#include <cstddef>
#include <string>

#include "allocator/rung.h"

namespace poolgrad {

/// Called without any lock of the pool held, from the thread whose allocation would fail. A call may free and allocate;
/// its own allocations never lead to clients again.
class ReclaimClient {
 public:
  virtual ~ReclaimClient() = default;
  /// Shown in the out-of-memory report.
  virtual std::string name() const = 0;
  /// RungId::derived_cache, offload or rematerialise. Derived caches are asked first; the others are merged by price.
  virtual RungId kind() const { return RungId::derived_cache; }
  /// What getting a byte back costs, in nanoseconds: 0 for a cache that is never needed again. Must be a number.
  virtual double price_per_byte() const = 0;
  /// Bytes that reclaim() could free now; 0 skips this client.
  virtual std::size_t estimate() = 0;
  /// Frees at least `bytes` if it can, as few as possible; returns the bytes really freed.
  virtual std::size_t reclaim(std::size_t bytes) = 0;
};

}  // namespace poolgrad
