#include "allocator/error.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launcher.cuh"
#include "kernels/definition/functors.h"
#include "kernels/definition/pointwise.h"

namespace poolgrad::kernels::cuda {

std::string unavailable_reason() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  cudaGetLastError();
  // cudaErrorNoDevice and cudaErrorInsufficientDriver both come from machines without a GPU.
  return std::string("no CUDA device: ") + cudaGetErrorString(status);
}

void gelu(Stream stream, View out, View x) {
  const std::string reason = unavailable_reason();
  if (!reason.empty()) throw DeviceError("[gelu] no kernels for " + to_string(stream.device) + ": " + reason);
  switch (x.dtype) {
    case DType::f32: return parallel_for("gelu", stream, x.count(), PointwiseUnary<functors::Gelu, float>{out, x});
    case DType::f64: return parallel_for("gelu", stream, x.count(), PointwiseUnary<functors::Gelu, double>{out, x});
    default: throw DTypeError("[gelu] takes f32 or f64 on CUDA, got " + std::string(to_string(x.dtype)));
  }
}

}  // namespace poolgrad::kernels::cuda
