// What the pool asks of a device. Implementations: HostMemory (mmap), SimulatedMemory (addresses only), CudaMemory;
// adaptors (fail the k-th call, delay events, limit, trace) wrap any of them. Injected into CachingAllocator, so every
// allocator test runs without a GPU.
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

/// Names a point in a stream's work; 0 is "nothing recorded".
using EventId = std::uint64_t;

/// What a stream does with memory: any number of them may read at a time.
enum class Access : std::uint8_t { reads, writes };

/// Memory of a device as another process can have it: the handles behind a range, lowest first, as file descriptors,
/// which are the caller's to close. See ImportedMemory.
struct ExportedMemory {
  struct Handle {
    int descriptor = -1;
    std::size_t bytes = 0;
  };
  std::vector<Handle> handles;
  std::size_t offset = 0;  // where in the first one the range begins
  std::size_t bytes = 0;   // of the range
};

/// All calls may be made from any thread. Functions that can fail for want of memory return false / nullptr; other
/// failures throw DeviceError or CudaError. Functions marked noexcept never fail.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;
  /// Smallest unit of commit, in bytes: a power of two; sizes and addresses below are multiples of it.
  virtual std::size_t granularity() const = 0;
  /// Memory is faster to use when this much, aligned to it, is committed in one call: a power of two >= granularity().
  virtual std::size_t large_page() const { return granularity(); }
  virtual MemoryInfo info() const = 0;

  /// Reserves `bytes` of addresses without memory behind them; nullptr if the address space is exhausted.
  virtual void* reserve(std::size_t bytes) = 0;
  virtual void unreserve(void* address, std::size_t bytes) noexcept = 0;
  /// Puts memory behind [address, address + bytes) of a reserved range; false if the device has none left.
  virtual bool commit(void* address, std::size_t bytes) = 0;
  /// Gives the memory behind the range back to the device; the addresses stay reserved.
  virtual void decommit(void* address, std::size_t bytes) noexcept = 0;
  /// Moves the memory behind the committed range at `from`, bytes and all, behind the reserved, uncommitted range at
  /// `to`, without asking the device for more; `from` is uncommitted then. False, changing nothing, if it cannot.
  virtual bool move(void* /*from*/, void* /*to*/, std::size_t /*bytes*/) { return false; }
  /// Whether decommit() and move() take any pages. If not, memory comes in handles: each commit() makes one, and ranges
  /// given to decommit() and move() are whole handles, one or several neighbours.
  virtual bool divisible() const { return true; }

  /// Lets work of another device read and write this memory, what is committed now and later. False, changing nothing,
  /// where the two devices have no way to each other. Who uses it orders the streams of both sides.
  virtual bool share_with(Device /*peer*/) { return false; }
  /// What lies behind a committed range, for other processes; nothing where the device cannot export memory.
  virtual std::optional<ExportedMemory> export_range(const void* /*address*/, std::size_t /*bytes*/) {
    return std::nullopt;
  }

  /// Sets every byte of a committed range to `value`, in stream order. Does nothing where there are no bytes.
  virtual void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) = 0;

  /// Whether work waits in streams for its turn; if not, all of it runs at once, in the order of the calls.
  virtual bool queues_work() const { return true; }
  /// Marks the work queued on `stream` so far. The event lives until it is spent or discarded.
  virtual EventId record_event(Stream stream) = 0;
  /// True once the marked work is done; the event is then spent.
  virtual bool event_finished(EventId event) = 0;
  /// Lets later work of `stream` wait for the event without blocking the caller.
  virtual void stream_wait(Stream stream, EventId event) = 0;
  /// Blocks until the marked work is done; the event is then spent.
  virtual void synchronize(EventId event) = 0;
  /// Gives up an event that nobody will ask about.
  virtual void discard_event(EventId event) noexcept = 0;

  /// Around fork(), see fork.h: nobody is inside a call, until go_on() in the parent and in the child. A pool's own
  /// calls are over by then; those of others, which use the device beside a pool, are waited for.
  virtual void hold_still() {}
  virtual void go_on() noexcept {}

  /// Whether touch() wants to be told.
  virtual bool detects_races() const { return false; }
  /// `stream` may read, or read and write, the range from now on. A race detector throws DeviceError naming both call
  /// sites if another stream's use of it is not ordered before, unless both only read.
  virtual void touch(const void* /*address*/, std::size_t /*bytes*/, Stream /*stream*/, std::source_location /*by*/,
                     Access /*access*/ = Access::writes) {}
};

}  // namespace poolgrad
