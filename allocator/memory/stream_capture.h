// Recording what is queued on a stream, in place of running it (CUDA graphs), and what memory does meanwhile.
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

/// A block that was given back while a step was recorded and came from elsewhere: what was recorded may use it.
struct KeptBlock {
  CachingAllocator* pool;
  void* pointer;
  std::size_t bytes, alignment;
  Stream stream;
};

/// What a graph uses and does not own.
struct KeptForGraph {
  std::vector<KeptBlock> blocks;
  std::vector<std::shared_ptr<const void>> objects;

  /// Lets go of all. Once the graph is gone and its work is done.
  void give_back() noexcept;
};

/// While it lives, work that this thread queues on the stream is recorded; what it asks allocator_for() of the stream's
/// device for comes from a pool of the recording's own, and what it gives back to other pools of the device it keeps.
///
/// The addresses of that pool are written down in the graph, so nobody else may have them. No event of a recording is
/// ever asked about or waited for: in the thread that records, pools ask and wait for nothing (what is pending stays
/// pending), and other threads record no events on the stream.
class StreamCapture {
 public:
  /// `pool` is of the stream's device, on RecordedMemory; both outlive the graph. Throws Error inside another one, and
  /// CudaError.
  StreamCapture(Stream stream, CudaDriver& driver, CachingAllocator& pool);
  /// What was recorded is lost, unless finish() has returned it; kept blocks go back.
  ~StreamCapture();
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  /// The recorded work, to be launched by the driver any number of times. Throws CudaError where a rule was broken.
  std::uint64_t finish();
  /// What finish() leaves to the owner of the graph: to be given back when that is gone and its work is done.
  KeptForGraph take_kept() { return std::exchange(kept_, {}); }

  /// Takes over a block that a tensor gives back, if it is not the recording's own.
  bool keep(const KeptBlock& block) noexcept;
  /// What a cache has lent to the recorded work lives as long as the graph.
  void keep(std::shared_ptr<const void> object) { kept_.objects.push_back(std::move(object)); }
  CachingAllocator& pool() const { return pool_; }
  /// Whether these events are those of the recording's own pool.
  bool has_events_of(const DeviceMemory& memory) const;
  Device device() const { return stream_.device; }

  /// The one in this thread; nullptr outside.
  static StreamCapture* current() noexcept;
  /// Whether what is queued on the stream now is recorded, by whichever thread.
  static bool covers(Stream stream) noexcept;

 private:
  void end() noexcept;

  const Stream stream_;
  CudaDriver& driver_;
  CachingAllocator& pool_;
  KeptForGraph kept_;
  bool records_ = false;
};

/// Memory for the blocks of recordings: what was committed once stays where it is for as long as the addresses are
/// reserved, since graphs know them, whatever the pool gives back.
class RecordedMemory : public MemoryAdaptor {
 public:
  explicit RecordedMemory(int index) : RecordedMemory(std::make_unique<CudaMemory>(index)) {}
  explicit RecordedMemory(std::unique_ptr<CudaStreams> inner)
      : MemoryAdaptor(std::move(inner)), events_(&MemoryAdaptor::inner()) {}

  /// Bytes that the device has given. Not while the pool is used, as set_limit().
  std::size_t committed() const { return committed_; }
  /// Commits at most so many.
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
