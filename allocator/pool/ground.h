// What all parts of a pool stand on: what it is, its device, its mutex, its accounts, its trace; and what they are
// about: a need, and what was yielded for it.
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
#include "allocator/front/magazine.h"
#include "allocator/front/thread_cache.h"
#include "allocator/pool/pool_mutex.h"
#include "allocator/pool/recorder.h"
#include "allocator/report/accounts.h"

namespace poolgrad {

/// The program has misused `pointer`, and memory is already corrupt: says so and ends it.
[[noreturn]] void die_of_misuse(const char* what, const void* pointer, Device device,
                                const std::string& detail) noexcept;

/// What never changes.
struct PoolSettings {
  PoolSettings(DeviceMemory& memory, const AllocatorConfig& config);

  /// What a block of so many bytes takes. Up to the alignment, if that is small: what would be left over is little, and
  /// more to keep account of than it is worth.
  std::size_t rounded(std::size_t bytes, std::size_t alignment = 1) const {
    return round_up(bytes != 0 ? bytes : 1, std::max(granule, alignment <= most_rounding ? alignment : 1));
  }
  static constexpr std::size_t most_rounding = 512;
  /// The calling thread's cache of the pool, if it has one.
  ThreadCache* own_cache() const noexcept { return ThreadCaches::known(id, place); }
  [[noreturn]] void die(const char* what, const void* pointer, const std::string& detail) const noexcept {
    die_of_misuse(what, pointer, device, detail);
  }

  const std::uint64_t id;        // never the same for two pools
  std::size_t place = SIZE_MAX;  // never the same for two pools at the same time, and small; known once the pool is
  const AllocatorConfig config;
  const Device device;
  const std::size_t granule;
  const std::size_t page;
  const std::size_t large_page;
  const bool poison;
  const bool tags;                       // categories are told apart, counted and hashed
  const bool races;                      // the device wants to know who touches what
  const bool decays;                     // cached pages go back with age,
  const std::size_t hits_between_looks;  // which is looked at behind so many hits of a thread
  const bool magazines;                  // threads may keep blocks
};

struct Ground {
  Ground(std::unique_ptr<DeviceMemory> device_memory, const AllocatorConfig& config)
      : settings(*device_memory, config), memory(std::move(device_memory)) {}

  PoolSettings settings;
  const std::unique_ptr<DeviceMemory> memory;
  PoolMutex mutex;
  Accounts accounts{settings.tags};
  Recorder recorder{settings};
  /// Bytes that a magazine may hold: a small share of the memory, for what is there cannot join its neighbours, which
  /// costs room elsewhere.
  Relaxed<std::size_t> magazine_limit = settings.magazines ? least_magazine_limit : 0;
  /// Threads keep blocks from now on, or do not.
  void use_magazines(bool used) noexcept {
    magazines_used_ = used && settings.magazines;
    limit_magazines();
  }

  /// Bytes that the device is being asked for, and may refuse: claimed before, so that the budget holds at every
  /// moment.
  std::size_t asked_bytes = 0;
  std::size_t claimed_bytes() const { return accounts.reserved_bytes.current + asked_bytes; }
  /// Bytes are, or are no longer, reserved on the device.
  void reserve(std::size_t bytes) noexcept {
    accounts.reserved_bytes.add(bytes);
    limit_magazines();
  }
  void unreserve(std::size_t bytes) noexcept {
    accounts.reserved_bytes.subtract(bytes);
    limit_magazines();
  }

 private:
  static constexpr std::size_t least_magazine_limit = std::size_t{16} << 10;
  void limit_magazines() noexcept {
    constexpr std::size_t share = 256;
    const std::size_t reserved = accounts.reserved_bytes.current;
    magazine_limit = magazines_used_ ? std::clamp(reserved / share, least_magazine_limit, Magazine::most_bytes) : 0;
  }
  bool magazines_used_ = settings.magazines;
};

/// An allocation that found no block.
struct Need {
  Need() {}  // member by member: an aggregate would be zeroed by `rep stos`, a fiftieth of what a miss costs
  std::size_t requested = 0;  // bytes asked for
  std::size_t size = 0;       // rounded
  std::size_t alignment = 0;
  Stream stream;
  Tag tag;
  bool may_reclaim = true;                // clients and the user's callback may be asked
  double priority = 0;                    // clients above this price per byte are not
  int attempts = 0;                       // times that the user's callback was asked
  bool refused = false;                   // the budget or the device refused new memory
  bool device_full = false;               // the device itself refused memory that the budget would have allowed
  bool addresses_full = false;            // it has no addresses for memory that it may have
  std::uint64_t device_calls_seen = 0;    // calls of all threads that had ended when the budget was last looked at
  std::uint64_t frees_seen = 0;           // frees by then
  std::source_location location = {};     // that asked
  std::vector<std::string> remarks = {};  // what is to be said in a report, a sentence each
  Block* block = nullptr;                 // the result, busy, once there is one
};

/// What a rung gave during one climb of the ladder, summed over its runs.
struct Yield {
  std::string rung;
  std::size_t bytes = 0;
  std::size_t runs = 0;
  std::uint64_t nanoseconds = 0;
};

}  // namespace poolgrad
