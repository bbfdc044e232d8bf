// Arrays in the memory of cuda:0, from its pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/launcher.cuh"

namespace poolgrad::kernels::testing {

inline constexpr Stream cuda0{Device{DeviceType::cuda, 0}};

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values, Stream stream = cuda0)
      : stream_(stream), count_(values.size()), memory_(stream, "test", static_cast<std::int64_t>(values.size())) {
    cuda::copy_bytes(stream, memory_.data(), values.data(), count_ * sizeof(T));
  }
  T* data() const { return memory_.data(); }
  std::vector<T> read(Stream stream) const {
    std::vector<T> values(count_);
    cuda::copy_bytes(stream, values.data(), memory_.data(), count_ * sizeof(T));
    return values;
  }
  std::vector<T> read() const { return read(stream_); }

 private:
  Stream stream_;
  std::size_t count_;
  Workspace<T> memory_;
};

/// The error of the kernels launched on cuda:0.
inline std::string error_of_kernels() {
  try {
    synchronize(cuda0);
  } catch (const CudaError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace poolgrad::kernels::testing
