// What the hot path of every pool needs of the calling thread, in one place that a shared library reaches with one
// addition: initial-exec thread-local storage. Small, since such storage is scarce in libraries loaded at run time.
#pragma once

#include <array>
#include <cstdint>
#include <source_location>
#include <string>

#include "allocator/memory_scope.h"

#ifdef __linux__
#define POOLGRAD_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#else
#define POOLGRAD_INITIAL_EXEC
#endif

namespace poolgrad {

class ThreadCache;

/// Trivially destructible: it may still be looked at while the thread's other objects are being destroyed.
struct ThreadState {
  struct KnownCache {
    std::uint64_t pool = 0;  // Pool::id(), never used twice
    ThreadCache* cache = nullptr;
  };
  /// The caches used last, by the lowest bits of the pool's id.
  std::array<KnownCache, 4> caches{};
  /// See current_tag().
  Tag tag{};
  /// See CallSite: the line that counts, and the operator whose backward runs.
  std::source_location call_site{};
  const std::string* backward_of = nullptr;
  /// The caches have been given back and no new ones may be made.
  bool ended = false;

  KnownCache& cache_of(std::uint64_t pool) { return caches[pool % 4]; }
};

extern constinit thread_local ThreadState thread_state POOLGRAD_INITIAL_EXEC;

}  // namespace poolgrad
