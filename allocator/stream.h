// An in-order queue of work on one device. The CPU has one stream and runs work at once.
#pragma once

#include <cstdint>

#include "allocator/device.h"

namespace poolgrad {

/// A value type. `id` 0 is the default stream (CUDA: the legacy one); other ids on CUDA are driver handles. Ids are
/// below 2^62: pools use larger ones for per-thread streams and for remains of destroyed streams.
struct Stream {
  Device device;
  std::uint64_t id = 0;

  friend bool operator==(const Stream&, const Stream&) = default;
};

/// CUDA's cudaStreamPerThread, a different stream in each thread, which pools tell apart.
inline constexpr std::uint64_t per_thread_stream = 2;

/// This thread's current stream on `device`; the default stream unless a StreamGuard is alive.
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
