// An in-order queue of work on one device. On the CPU there is one stream and work runs at once.
#pragma once

#include <cstdint>

#include "allocator/device.h"

namespace poolgrad {

/// A value type. `id` 0 is the default stream, on CUDA the legacy one; other ids there are the driver's handles. Ids
/// are below 2^62: pools name streams of threads, and what is left of destroyed ones, from there on.
struct Stream {
  Device device;
  std::uint64_t id = 0;

  friend bool operator==(const Stream&, const Stream&) = default;
};

/// On CUDA: cudaStreamPerThread, a stream of its own in each thread. Pools tell them apart.
inline constexpr std::uint64_t per_thread_stream = 2;

/// The stream on which this thread's operators run on `device`; the default stream unless a StreamGuard is alive.
Stream current_stream(Device device);

/// Makes `stream` current for its device in this thread until the guard dies.
class StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream previous_;
};

}  // namespace poolgrad
