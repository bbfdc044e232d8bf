// Records work of a stream instead of running it (CUDA graphs), and keeps the memory that the graph uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/memory_adaptor.h"
#include "allocator/stream.h"

namespace poolgrad {

class CachingAllocator;

/// A block of another pool that was freed during the recording and that the recorded work may use.
struct KeptBlock {
  CachingAllocator* pool;
  void* pointer;
  std::size_t bytes, alignment;
  Stream stream;
};

/// Objects that a graph uses but does not own.
struct KeptForGraph {
  std::vector<KeptBlock> blocks;
  std::vector<std::shared_ptr<const void>> objects;

  /// Frees all of it. Call once the graph is gone and its work is done.
  void give_back() noexcept;
};

/// Records, for its lifetime, the work that this thread queues on the stream. The thread's calls of allocator_for() for
/// the stream's device return the recording's own pool. Blocks that it frees in other pools of the device are kept.
///
/// The graph stores addresses of that pool, so the pool must not serve other work. CUDA forbids queries of and waits
/// for recorded events. In the recording thread, pools therefore neither poll nor wait (pending blocks stay pending),
/// and other threads record no events on the stream.
class StreamCapture {
 public:
  /// `pool` is on the stream's device, with RecordedMemory; both outlive the graph. Throws Error inside another
  /// capture, and CudaError.
  StreamCapture(Stream stream, CudaDriver& driver, CachingAllocator& pool);
  /// Discards the recording unless finish() has returned it; frees kept blocks.
  ~StreamCapture();
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  /// Ends the recording and returns a graph that can be launched any number of times. Throws CudaError if the capture
  /// was invalidated.
  std::uint64_t finish();
  /// Kept objects, which the graph's owner gives back once the graph is gone and its work is done.
  KeptForGraph take_kept() { return std::exchange(kept_, {}); }

  /// Keeps a block that a tensor frees. Returns false for a block of the recording's own pool.
  bool keep(const KeptBlock& block) noexcept;
  /// Keeps an object that a cache lent to the recorded work until the graph is gone.
  void keep(std::shared_ptr<const void> object) { kept_.objects.push_back(std::move(object)); }
  CachingAllocator& pool() const { return pool_; }
  /// Whether the events of `memory` belong to the recording's own pool.
  bool has_events_of(const DeviceMemory& memory) const;
  Device device() const { return stream_.device; }

  /// The thread's active capture; nullptr if none.
  static StreamCapture* current() noexcept;
  /// Whether any thread is recording the stream.
  static bool covers(Stream stream) noexcept;

 private:
  void end() noexcept;

  const Stream stream_;
  CudaDriver& driver_;
  CachingAllocator& pool_;
  KeptForGraph kept_;
  bool records_ = false;
};

/// Memory for the pools of recordings. Committed pages stay committed while their addresses are reserved, even if the
/// pool releases them, because graphs use these addresses.
class RecordedMemory : public MemoryAdaptor {
 public:
  explicit RecordedMemory(int index) : RecordedMemory(std::make_unique<CudaMemory>(index)) {}
  explicit RecordedMemory(std::unique_ptr<CudaStreams> inner)
      : MemoryAdaptor(std::move(inner)), events_(&MemoryAdaptor::inner()) {}

  /// Bytes committed on the device. Like set_limit(), must not run while the pool is in use.
  std::size_t committed() const { return committed_; }
  /// Commits at most `bytes`.
  void set_limit(std::size_t bytes) { limit_ = bytes; }
  const DeviceMemory* events() const { return events_; }

  bool commit(void* address, std::size_t bytes) override;
  void decommit(void*, std::size_t) noexcept override {}
  bool move(void*, void*, std::size_t) override { return false; }
  void unreserve(void* address, std::size_t bytes) noexcept override;

 private:
  const DeviceMemory* const events_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> pieces_;  // bytes by address
  std::size_t committed_ = 0, limit_ = SIZE_MAX;
};

}  // namespace poolgrad
