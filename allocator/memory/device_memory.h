// The interface of a pool to its device. Implementations: HostMemory (mmap), SimulatedMemory (addresses only),
// CudaMemory. Adaptors (fail the k-th call, delay events, limit, trace) wrap any of them. Injected into
// CachingAllocator, so every allocator test runs without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include "allocator/device.h"
#include "allocator/stream.h"

namespace poolgrad {

struct MemoryInfo {
  std::size_t free = 0;   // bytes
  std::size_t total = 0;  // bytes
};

/// Identifies a point in a stream's work; 0: nothing was recorded.
using EventId = std::uint64_t;

/// How a stream accesses memory. Concurrent reads are allowed.
enum class Access : std::uint8_t { reads, writes };

/// Device memory exported to another process: the handles of a range, lowest first, as file descriptors that the caller
/// must close. See ImportedMemory.
struct ExportedMemory {
  struct Handle {
    int descriptor = -1;
    std::size_t bytes = 0;
  };
  std::vector<Handle> handles;
  std::size_t offset = 0;  // of the range in the first handle
  std::size_t bytes = 0;   // of the range
};

/// All calls are thread-safe. Functions that can run out of memory return false or nullptr; other failures throw
/// DeviceError or CudaError. Functions marked noexcept never fail.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;
  /// Smallest unit of commit in bytes, a power of two. All sizes and addresses below are multiples of it.
  virtual std::size_t granularity() const = 0;
  /// A power of two >= granularity(): memory is faster if committed in aligned pieces of this size.
  virtual std::size_t large_page() const { return granularity(); }
  virtual MemoryInfo info() const = 0;

  /// Reserves `bytes` of addresses without memory behind them; nullptr if the address space is exhausted.
  virtual void* reserve(std::size_t bytes) = 0;
  virtual void unreserve(void* address, std::size_t bytes) noexcept = 0;
  /// Commits memory for [address, address + bytes) of a reserved range; false if the device is out of memory.
  virtual bool commit(void* address, std::size_t bytes) = 0;
  /// Releases the memory of the range to the device; the addresses stay reserved.
  virtual void decommit(void* address, std::size_t bytes) noexcept = 0;
  /// Remaps the memory of the committed range at `from`, with its contents, to the reserved, uncommitted range at `to`,
  /// without new device memory; then `from` is uncommitted. Returns false, changing nothing, if it cannot.
  virtual bool move(void* /*from*/, void* /*to*/, std::size_t /*bytes*/) { return false; }
  /// Whether decommit() and move() take any pages. If not, each commit() makes one handle, and decommit() and move()
  /// take ranges of whole handles.
  virtual bool divisible() const { return true; }

  /// Lets another device read and write this memory, present and future commits. Returns false, changing nothing, if
  /// the devices cannot access each other. The caller orders the streams of both devices.
  virtual bool share_with(Device /*peer*/) { return false; }
  /// Exports a committed range to other processes; none if the device cannot export memory.
  virtual std::optional<ExportedMemory> export_range(const void* /*address*/, std::size_t /*bytes*/) {
    return std::nullopt;
  }

  /// Sets every byte of a committed range to `value`, in stream order. Does nothing for memory without bytes.
  virtual void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) = 0;

  /// Whether streams queue work; if not, work runs at once, in the order of the calls.
  virtual bool queues_work() const { return true; }
  /// Marks the work queued on `stream` so far. The event lives until it is spent or discarded.
  virtual EventId record_event(Stream stream) = 0;
  /// True once the marked work is done; the event is then spent.
  virtual bool event_finished(EventId event) = 0;
  /// Makes later work of `stream` wait for the event, without blocking the caller.
  virtual void stream_wait(Stream stream, EventId event) = 0;
  /// Blocks until the marked work is done; the event is then spent.
  virtual void synchronize(EventId event) = 0;
  /// Drops an event without waiting for it.
  virtual void discard_event(EventId event) noexcept = 0;

  /// Around fork(), see fork.h: blocks all calls until go_on() in the parent and in the child. A pool has ended its own
  /// calls by then; this waits for calls that bypass the pool.
  virtual void hold_still() {}
  virtual void go_on() noexcept {}

  /// Whether the pool must call touch().
  virtual bool detects_races() const { return false; }
  /// From now on `stream` may read, or read and write, the range. A race detector throws DeviceError with both call
  /// sites if another stream's use of it is not ordered before, unless both only read.
  virtual void touch(const void* /*address*/, std::size_t /*bytes*/, Stream /*stream*/, std::source_location /*by*/,
                     Access /*access*/ = Access::writes) {}
};

}  // namespace poolgrad
