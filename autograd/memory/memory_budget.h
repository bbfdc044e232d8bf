// A hard memory limit for training: saved tensors that do not fit are recomputed.
#pragma once

#include <cstddef>

#include "allocator/caching_allocator.h"
#include "autograd/memory/rematerialisation.h"

namespace poolgrad {

/// While alive, the pool of `device` reserves at most `bytes`, and tensors saved on this thread can be dropped. If an
/// allocation would exceed the budget, the pool first drops the saved tensors that cost least for each byte, and the
/// backward pass recomputes them. Results equal those of a run without a budget bit for bit. Throws OutOfMemoryError if
/// the memory needed at one time exceeds the budget, counted in pages and with gaps between blocks, or if one pass
/// would recompute for 50 times the forward's time.
///
///   MemoryBudget budget{8_GiB};
///   loss(model).backward();
class MemoryBudget {
 public:
  /// Does not raise an existing limit of the pool. With an offload_folder, tensors that are more expensive to recompute
  /// are written to a file there. Throws ValueError, changing nothing, for 0 and if live bytes on the device already
  /// exceed `bytes`. Throws FileError if no file can be created in the folder.
  explicit MemoryBudget(std::size_t bytes, Device device = cpu, RematerialisationOptions options = {});
  /// Restores the pool's limit.
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Returns the limit in force.
  std::size_t bytes() const { return bytes_; }
  RematerialisationStatistics statistics() const { return policy_.statistics(); }

 private:
  CachingAllocator& pool_;
  std::size_t previous_, bytes_;
  Rematerialisation policy_;
};

inline namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long n) { return static_cast<std::size_t>(n) << 10; }
constexpr std::size_t operator""_MiB(unsigned long long n) { return static_cast<std::size_t>(n) << 20; }
constexpr std::size_t operator""_GiB(unsigned long long n) { return static_cast<std::size_t>(n) << 30; }
}  // namespace literals

}  // namespace poolgrad
