// The common state of all parts of a pool: settings, device, mutex, accounts and recorder; and the type of a failing
// request.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "allocator/base/relaxed.h"
#include "allocator/base/rounding.h"
#include "allocator/caching_allocator.h"
#include "allocator/pool/accounts.h"
#include "allocator/pool/pool_mutex.h"
#include "allocator/pool/recorder.h"
#include "allocator/thread_cache/magazine.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

/// Reports a misuse of `pointer`, after which memory is corrupt, and ends the program.
[[noreturn]] void die_of_misuse(const char* what, const void* pointer, Device device,
                                const std::string& detail) noexcept;

/// Constant settings of a pool.
struct PoolSettings {
  PoolSettings(DeviceMemory& memory, const AllocatorConfig& config);

  /// The block size for a request. Rounds up to a small alignment too: the rest would be small, and cost more
  /// bookkeeping than it is worth.
  std::size_t rounded(std::size_t bytes, std::size_t alignment = 1) const {
    return round_up(bytes != 0 ? bytes : 1, std::max(granule, alignment <= most_rounding ? alignment : 1));
  }
  static constexpr std::size_t most_rounding = 512;
  /// The calling thread's cache of the pool; nullptr if it has none.
  ThreadCache* own_cache() const noexcept { return ThreadCacheTable::known(id, place); }
  [[noreturn]] void die(const char* what, const void* pointer, const std::string& detail) const noexcept {
    die_of_misuse(what, pointer, device, detail);
  }

  const std::uint64_t id;        // unique over all pools ever made
  std::size_t place = SIZE_MAX;  // small, and unique among existing pools; set after construction
  const AllocatorConfig config;
  const Device device;
  const std::size_t granule;
  const std::size_t page;
  const std::size_t large_page;
  const bool poison;
  const bool tags;                       // count and hash by category
  const bool races;                      // the device detects races
  const bool decays;                     // cached pages decay with age,
  const std::size_t hits_between_looks;  // which a thread checks after this many hits
  const bool magazines;                  // threads may cache blocks
};

struct PoolContext {
  PoolContext(std::unique_ptr<DeviceMemory> device_memory, const AllocatorConfig& config)
      : settings(*device_memory, config), memory(std::move(device_memory)) {}

  PoolSettings settings;
  const std::unique_ptr<DeviceMemory> memory;
  PoolMutex mutex;
  Accounts accounts{settings.tags};
  Recorder recorder{settings};
  /// Limit of the bytes of a magazine, and of the depot: a small share of the memory, because blocks there cannot merge
  /// with their neighbors, which costs room elsewhere.
  Relaxed<std::size_t> magazine_limit = 0;
  /// Turns the magazines of threads on or off.
  void use_magazines(bool used) noexcept {
    magazines_used_ = used && settings.magazines;
    limit_magazines();
  }

  /// Bytes of commits in progress, which the device may refuse: counted in advance, so that the budget holds at every
  /// moment.
  std::size_t asked_bytes = 0;
  std::size_t claimed_bytes() const { return accounts.reserved_bytes.current + asked_bytes; }
  /// Adds to, or subtracts from, the reserved bytes.
  void reserve(std::size_t bytes) noexcept {
    accounts.reserved_bytes.add(bytes);
    limit_magazines();
  }
  void unreserve(std::size_t bytes) noexcept {
    accounts.reserved_bytes.subtract(bytes);
    limit_magazines();
  }

 private:
  void limit_magazines() noexcept {
    constexpr std::size_t share = 64, little = std::size_t{64} << 10;
    const std::size_t reserved = accounts.reserved_bytes.current;
    const std::size_t least = std::min(little, reserved / 4);
    magazine_limit = magazines_used_ ? std::clamp(reserved / share, least, Magazine::most_bytes) : 0;
  }
  bool magazines_used_ = settings.magazines;
};

/// A request for which the search found no block.
struct AllocationAttempt {
  AllocationAttempt() {}  // initialize single members: an aggregate would be zeroed by `rep stos`, 2 % of a pool miss
  std::size_t requested = 0;  // bytes
  std::size_t size = 0;       // rounded
  std::size_t alignment = 0;
  Stream stream;
  Tag tag;
  bool may_reclaim = true;                // may ask clients and the user's callback
  double priority = 0;                    // skip clients above this price per byte
  int attempts = 0;                       // calls of the user's callback
  bool refused = false;                   // the budget or the device refused new memory
  bool device_full = false;               // the device refused memory within the budget
  bool addresses_full = false;            // the device is out of addresses
  std::uint64_t device_calls_seen = 0;    // finished device calls of all threads at the last look at the budget
  std::uint64_t frees_seen = 0;           // frees at that time
  std::source_location location = {};     // of the request
  std::vector<std::string> remarks = {};  // sentences for the report
  Block* block = nullptr;                 // the result, busy; nullptr until found
};

}  // namespace poolgrad
