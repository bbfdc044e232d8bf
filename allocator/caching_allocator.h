// The pool: one per device. Every byte of every tensor comes from here.
//
// Memory is committed in pages inside reserved address windows and never handed back while it may be useful: freed
// blocks coalesce at once and are found again through two-level bitmap buckets (lowest address first). When no block
// fits, the emergency ladder is walked; its last rung is OutOfMemoryError with a report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "allocator/device.h"
#include "allocator/device_memory.h"
#include "allocator/memory_scope.h"
#include "allocator/reclaim_client.h"
#include "allocator/snapshot.h"
#include "allocator/statistics.h"
#include "allocator/stream.h"

namespace poolgrad {

/// How a pool behaves. Also readable from text: see parse().
struct AllocatorConfig {
  /// Hard limit on reserved bytes; 0 means what the device has.
  std::size_t budget = 0;
  /// Smallest alignment of every block, in bytes (power of two).
  std::size_t alignment = 64;
  /// Overwrite memory with 0xFF (a NaN in every float type) when it is handed out and when it comes back.
  bool poison = false;

  /// "budget:8GiB,poison:on"; unknown keys throw a ValueError that lists the known ones.
  static AllocatorConfig parse(const std::string& text);
  /// From the environment variable POOLGRAD_ALLOCATOR; defaults where it is unset.
  static AllocatorConfig from_environment();
};

/// One request; everything but `bytes` has a default.
struct AllocationRequest {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  Stream stream;
  Tag tag = current_tag();
};

class Pool;

class CachingAllocator {
 public:
  explicit CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config = {});
  /// Releases everything; live blocks become invalid.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const;

  /// Same argument order as std::pmr and cuda::mr. 0 bytes give a unique non-null pointer. Throws OutOfMemoryError with
  /// the report, and ValueError for an alignment that is no power of two.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream);
  /// The block, or the report that allocate() would have thrown.
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request);
  /// Gives a block back. Work already queued on `stream` may still use it. A foreign pointer, a double free or wrong
  /// bytes end the program with one sentence on stderr: memory is already corrupt.
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) noexcept;

  /// Bytes that may really be used at `pointer` (>= requested).
  std::size_t usable_size(const void* pointer) const;
  /// Returns cached pages to the device, least recently used first, until `bytes` are released or none is left.
  /// Returns the bytes released. trim() releases all.
  std::size_t trim(std::size_t bytes = SIZE_MAX);
  /// A new hard limit on reserved bytes (0: what the device has). Trims down to it; throws ValueError, changing
  /// nothing, if live memory alone is above it.
  void set_budget(std::size_t bytes);
  std::size_t budget() const;

  Statistics statistics() const;
  /// Peaks restart from the present values.
  void reset_peaks();
  /// FNV-1a, 64 bits at a time, over (kind, bytes, category) of all requests and frees so far: equal hashes, equal
  /// allocation sequences. Blocks are numbered by allocation order, so the hash is independent of addresses. Scratch of
  /// kernels (Category::workspace) is left out: it differs with the back end and the number of threads, tensors do not.
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();

  /// Every block of every address window, window by window in address order.
  std::vector<BlockSnapshot> snapshot() const;

  /// From now on the client is asked for memory when nothing cheaper helps, cheapest client first, until it expires.
  void add_client(std::weak_ptr<ReclaimClient> client);

  DeviceMemory& memory();

 private:
  friend void configure_simulated_device(int index, std::size_t capacity);
  std::unique_ptr<Pool> pool_;
};

/// The process-wide pool of a device, made at first use with AllocatorConfig::from_environment(). Throws DeviceError
/// for a device that does not exist (a CUDA device in a build without CUDA; a sim device that was never configured gets
/// the default capacity of 8 GiB).
CachingAllocator& allocator_for(Device device);

/// Creates sim:index with `capacity` bytes. Throws ValueError if that device already has live memory.
void configure_simulated_device(int index, std::size_t capacity);

/// "8GiB", "512MiB", "1.5GB", "4096" -> bytes. Throws ValueError that shows the text.
std::size_t parse_bytes(const std::string& text);
/// 1536 -> "1.50 KiB".
std::string format_bytes(std::size_t bytes);

}  // namespace poolgrad
