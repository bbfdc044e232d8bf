// A stream of cuda:0 beside the default one, on a GPU and on the emulated device.
#pragma once

#include <memory>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/stream.h"

namespace poolgrad::testing_support {

/// The driver's own, for as long as it lives; the pool hears of its end.
class OwnStream {
 public:
  explicit OwnStream(Device device = {DeviceType::cuda, 0})
      : driver_(make_cuda_driver(device.index)), stream_{device, driver_->stream_create()} {}
  ~OwnStream() {
    wait();
    allocator_for(stream_.device).stream_destroyed(stream_);
    driver_->stream_destroy(stream_.id);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator Stream() const { return stream_; }
  void wait() const { driver_->stream_synchronize(stream_.id); }

 private:
  std::unique_ptr<CudaDriver> driver_;
  Stream stream_;
};

}  // namespace poolgrad::testing_support
