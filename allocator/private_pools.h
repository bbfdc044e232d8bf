// Private pools inside the process-wide ones, for the C interface: they keep the memory of CUDA graphs, which are
// replayed with the addresses of their capture. Without private pools, the overhead is two loads.
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

/// A private block stays live in its pool, which tracks the streams that use it, until its private pool is released.
/// Streams carry the pool's ids, see ThreadCacheTable::named().
class PrivatePools {
 public:
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  /// Whether the private pool takes allocations on a stream, given the driver's handle. Must be thread-safe.
  using Filter = std::function<bool(void* stream)>;

  /// Until end(), the private pool takes the allocations that the filter accepts (all, if it is empty).
  void begin(CachingAllocator& pool, Id id, Filter filter);
  /// Returns once no thread is inside the filter; false if no such pool is open.
  bool end(CachingAllocator& pool, Id id);
  /// The counterpart of one begin(). The last one returns its blocks to the pool, blocks in use when they are freed.
  /// Returns false if there is no such pool.
  bool release(CachingAllocator& pool, Id id);

  /// As the pool's functions. A call outside all private pools takes no lock, or, while one is open, a shared lock to
  /// ask the filters.
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
    std::size_t begun = 0;  // and not yet released
    std::list<Block> blocks;
    std::map<std::pair<std::size_t, std::uint64_t>, std::vector<Block*>> free;  // by bytes and stream
  };

  /// Different devices may have equal addresses, so the key contains the device.
  static std::uint64_t key_of(const void* pointer, Stream stream) {
    return reinterpret_cast<std::uintptr_t>(pointer) ^ std::uint64_t{std::hash<Device>{}(stream.device)} << 48;
  }
  void* allocate_if_taken(CachingAllocator& pool, std::size_t bytes, std::size_t alignment, Stream stream);
  std::optional<Key> taken_by(CachingAllocator& pool, Stream stream);
  void* allocate_again(const Key& key, std::size_t bytes, Stream stream);
  void note(const Block& block);
  /// Returns false if the pool itself has to free the block.
  bool keep(CachingAllocator& pool, void* pointer, std::size_t bytes, Stream stream);

  ForkSharedMutex filters_;  // shared while filters are asked
  std::atomic<std::size_t> open_count_ = 0;
  std::vector<Open> open_;

  ForkMutex mutex_;  // guards the members below; held while streams wait, not while memory is allocated
  std::map<Key, Kept> kept_;
  std::size_t table_bytes_ = 0;
  std::atomic<std::size_t> block_count_ = 0;
  // All private blocks by address; nullptr for a former one. Readable without the mutex. Never erased, so entries do
  // not move and a failed lookup is final.
  PointerTable<Block> blocks_{table_bytes_};
};

/// The process-wide instance.
PrivatePools& private_pools();

}  // namespace poolgrad
