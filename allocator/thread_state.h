// What the hot path of every pool needs of the calling thread, in one place that a shared library reaches with one
// addition: initial-exec thread-local storage. Small, since such storage is scarce in libraries loaded at run time.
#pragma once

#include <array>
#include <cstddef>
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
  /// By the pools' places: those of the first ones here, the others in memory of ThreadCaches.
  std::array<KnownCache, 4> caches{};
  const KnownCache* more_caches = nullptr;
  std::size_t more = 0;
  /// What pools call this thread's own stream, see ThreadCaches::named(); 0: it has no name yet.
  std::uint64_t own_stream = 0;
  /// See current_tag().
  Tag tag{};
  /// See CallSite: the line that counts, and the operator whose backward runs.
  std::source_location call_site{};
  const std::string* backward_of = nullptr;
  /// The caches have been given back and no new ones may be made.
  bool ended = false;

  KnownCache cache_of(std::size_t place) const {
    if (place < caches.size()) [[likely]]
      return caches[place];
    return place - caches.size() < more ? more_caches[place - caches.size()] : KnownCache{};
  }
};

extern constinit thread_local ThreadState thread_state POOLGRAD_INITIAL_EXEC;

}  // namespace poolgrad
