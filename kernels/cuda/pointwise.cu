#include "kernels/cuda/launcher.cuh"
#include "kernels/definition/elementwise.h"
#include "kernels/dispatch.h"

namespace poolgrad::kernels {
namespace cuda {
namespace {

/// The one there is: gelu.
void unary(Stream stream, UnaryOp op, const View& out, const View& x, double, double) {
  if (op != UnaryOp::gelu || !unavailable_reason().empty()) throw_no_kernel(stream, to_string(op));
  switch (x.dtype) {
    case DType::f32: return parallel_for("gelu", stream, x.count(), PointwiseUnary<functors::Gelu, float>{out, x});
    case DType::f64: return parallel_for("gelu", stream, x.count(), PointwiseUnary<functors::Gelu, double>{out, x});
    default: throw_no_kernel(stream, to_string(op));
  }
}

}  // namespace
}  // namespace cuda

const KernelTable cuda_kernels{.unary = cuda::unary};

std::string cuda::unavailable_reason() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return "";
  cudaGetLastError();
  // cudaErrorNoDevice and cudaErrorInsufficientDriver both come from machines without a GPU.
  return std::string("no CUDA device: ") + cudaGetErrorString(status);
}

}  // namespace poolgrad::kernels
