// Pools within the process-wide ones, for the C interface: they keep what was allocated for them, as a graph needs it
// that was recorded with these addresses and will use them again and again. While there are none, they cost two loads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "allocator/base/fork.h"
#include "allocator/caching_allocator.h"
#include "allocator/heap/pointer_table.h"

namespace poolgrad {

/// A private block stays live in the pool that it came from, which knows who uses it, until its private pool is
/// released. Streams are those that pools name, see ThreadCaches::named().
class PrivatePools {
 public:
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  /// Whether the private pool takes what is allocated on a stream, given the driver's handle. Called by any thread, by
  /// several at once.
  using Filter = std::function<bool(void* stream)>;

  /// From now on until end(), what the filter accepts (all, if it is empty) is the private pool's.
  void begin(CachingAllocator& pool, Id id, Filter filter);
  /// Returns when no thread is inside the filter any more; false if no such pool is open.
  bool end(CachingAllocator& pool, Id id);
  /// The counterpart of one begin(). With the last, its blocks become the pool's; those in use when they are given
  /// back. False if there is no such pool.
  bool release(CachingAllocator& pool, Id id);

  /// As the pool's own. A call that no private pool is about takes no lock but, while one is open, a shared one in
  /// which the filters are asked.
  void* allocate(CachingAllocator& pool, std::size_t bytes, std::size_t alignment, Stream stream) {
    if (open_count_.load(std::memory_order_acquire) == 0) [[likely]]
      return pool.allocate(bytes, alignment, stream);
    return allocate_if_taken(pool, bytes, alignment, stream);
  }
  void deallocate(CachingAllocator& pool, void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) {
    if (block_count_.load(std::memory_order_acquire) != 0 && blocks_.find(key_of(pointer, stream)) != nullptr &&
        keep(pool, pointer, bytes, stream))
      return;
    pool.deallocate(pointer, bytes, alignment, stream);
  }

 private:
  using Key = std::pair<CachingAllocator*, Id>;
  struct Open {
    Key key;
    Filter filter;
  };
  struct Block {
    Key key;
    void* pointer;
    std::size_t bytes;
    std::size_t alignment;
    Stream stream;
    bool live = true;
  };
  struct Kept {
    std::size_t begun = 0;  // and not released
    std::list<Block> blocks;
    std::map<std::pair<std::size_t, std::uint64_t>, std::vector<Block*>> free;  // by bytes and stream
  };

  /// Addresses of different devices may be the same: those of simulated ones are nobody's.
  static std::uint64_t key_of(const void* pointer, Stream stream) {
    return reinterpret_cast<std::uintptr_t>(pointer) ^ std::uint64_t{std::hash<Device>{}(stream.device)} << 48;
  }
  void* allocate_if_taken(CachingAllocator& pool, std::size_t bytes, std::size_t alignment, Stream stream);
  std::optional<Key> taken_by(CachingAllocator& pool, Stream stream);
  void* allocate_again(const Key& key, std::size_t bytes, Stream stream);
  void note(const Block& block);
  /// False where the pool itself has to take it back.
  bool keep(CachingAllocator& pool, void* pointer, std::size_t bytes, Stream stream);

  ForkSharedMutex filters_;  // shared while they are asked
  std::atomic<std::size_t> open_count_ = 0;
  std::vector<Open> open_;

  ForkMutex mutex_;  // of what follows; held while streams are made to wait, not while memory is asked for
  std::map<Key, Kept> kept_;
  std::size_t table_bytes_ = 0;
  std::atomic<std::size_t> block_count_ = 0;
  // Every private block by its address, and nullptr where one was; may be read without the mutex. Nothing is erased:
  // so entries never move, and whoever finds none knows that there is none.
  PointerTable<Block> blocks_{table_bytes_};
};

/// Those of the process.
PrivatePools& private_pools();

}  // namespace poolgrad
