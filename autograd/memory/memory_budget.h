// A hard limit on memory that training keeps by computing again what it cannot keep.
#pragma once

#include <cstddef>

#include "allocator/caching_allocator.h"
#include "autograd/memory/rematerialisation.h"

namespace poolgrad {

/// While it lives, the pool of `device` reserves at most `bytes`, and what this thread records can be dropped for that:
/// when an allocation would exceed the budget, the pool asks for saved tensors before it gives up, and those that cost
/// least for each byte are dropped and computed again where the backward needs them. Results are bit for bit those of a
/// run without a budget. Throws OutOfMemoryError if the memory needed at one time exceeds the budget, counted in pages
/// and with the gaps between blocks, or if one pass would recompute for 50 times the forward's time.
///
///   MemoryBudget budget{8_GiB};
///   loss(model).backward();
class MemoryBudget {
 public:
  /// A limit that the pool has already is not raised. With an offload_folder, what is dearer to compute again is
  /// written to a file there. ValueError, changing nothing, for 0 and where what lives on the device already exceeds
  /// `bytes`; FileError where there can be no file in the folder.
  explicit MemoryBudget(std::size_t bytes, Device device = cpu, RematerialisationOptions options = {});
  /// The pool's limit is again what it was.
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// The limit in force.
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
