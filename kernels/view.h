// View of a tensor for kernels: a pointer, a dtype, a shape and strides. Index arithmetic for host and device. Tensor
// operators check their arguments; kernels only assert.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/functors/host_device.h"

namespace poolgrad {

inline constexpr int max_rank = 8;

/// Strides are in elements and may be 0 (broadcast) or negative.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::int64_t shape[max_rank] = {};
  std::int64_t strides[max_rank] = {};

  POOLGRAD_HD std::int64_t count() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
  /// Whether it is row-major without gaps. Dimensions of size 1 may have any stride.
  POOLGRAD_HD bool contiguous() const {
    std::int64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (shape[d] != 1 && strides[d] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }
  /// Element offset of a row-major linear index below count().
  POOLGRAD_HD std::int64_t offset(std::int64_t linear) const {
    std::int64_t sum = 0;
    for (int d = rank - 1; d > 0; --d) {
      sum += (linear % shape[d]) * strides[d];
      linear /= shape[d];
    }
    return rank ? sum + linear * strides[0] : 0;
  }
  template <class T>
  POOLGRAD_HD T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace poolgrad
