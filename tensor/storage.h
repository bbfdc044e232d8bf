// A reference-counted block of memory from the pool of its device, and a version counter that in-place writes advance.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>

#include "allocator/device.h"
#include "allocator/stream.h"

namespace poolgrad {

class CachingAllocator;

class Storage {
 public:
  /// `bytes` from allocator_for(device) on the current stream, 64-byte aligned, tagged by the scopes alive; not
  /// initialised. `location` is what a trace shows, see CallSite. Throws OutOfMemoryError, DeviceError.
  Storage(Device device, std::size_t bytes, std::source_location location = std::source_location::current());
  /// Hands the block back to the pool, in order with the stream it was made on.
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return stream_.device; }

  /// Counts in-place writes; a saved tensor whose version has moved on cannot be used for a gradient.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Stream stream_;
  std::size_t bytes_;
  CachingAllocator& pool_;
  void* data_;
  std::atomic<std::uint64_t> version_{0};
};

}  // namespace poolgrad
