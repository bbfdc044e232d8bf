// Dispatch of kernel calls. Every back end is one table of functions with the signatures of the public ones. The public
// functions (dispatch.cpp) make the checks common to all devices and call the table of the stream's device. A simulated
// device has no table: its clock advances by the cost of the call, and its pool gets the same allocations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/indexing.h"
#include "kernels/optimizer.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

// clang-format off
/// Every kernel that a back end may have, by the name of its public function.
#define POOLGRAD_KERNELS(KERNEL) \
  KERNEL(unary) KERNEL(unary_backward) KERNEL(binary) KERNEL(axpby) KERNEL(silu_mul) KERNEL(silu_mul_backward) \
  KERNEL(where) KERNEL(copy) KERNEL(fill) KERNEL(arange) \
  KERNEL(reduce) KERNEL(argmax) KERNEL(argmin) KERNEL(argsort) KERNEL(cumulative_sum) KERNEL(add_sums_of_squares) \
  KERNEL(softmax) KERNEL(softmax_backward) KERNEL(log_softmax) KERNEL(log_softmax_backward) KERNEL(logsumexp) \
  KERNEL(layer_norm) KERNEL(layer_norm_backward) KERNEL(rms_norm) KERNEL(rms_norm_backward) \
  KERNEL(cross_entropy) KERNEL(cross_entropy_backward) KERNEL(rope) \
  KERNEL(check_indices) KERNEL(index_select) KERNEL(index_add) KERNEL(gather) KERNEL(scatter) \
  KERNEL(scatter_reduce) KERNEL(embedding) KERNEL(embedding_backward) \
  KERNEL(uniform) KERNEL(normal) KERNEL(dropout) KERNEL(adamw) KERNEL(sgd) KERNEL(rmsprop) \
  KERNEL(add_gradient) KERNEL(weighted_sum) KERNEL(gemm) \
  KERNEL(attention_forward) KERNEL(attention_delta) KERNEL(attention_backward)
/// Kernels of CPUs alone.
#define POOLGRAD_CPU_KERNELS(KERNEL) \
  KERNEL(delta_rule) KERNEL(delta_rule_backward) KERNEL(short_convolution) KERNEL(short_convolution_backward)
// clang-format on

namespace poolgrad::kernels {

/// A back end; a null entry is a missing kernel. Callers have checked the operands and the stream's device.
struct KernelTable {
#define POOLGRAD_KERNEL(name) decltype(&kernels::name) name = nullptr;
  POOLGRAD_KERNELS(POOLGRAD_KERNEL)
  POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

/// The kernels of CUDA devices. A build without nvcc has an empty table (kernels/cuda/stub.cpp).
extern const KernelTable cuda_kernels;

namespace cuda {
/// Returns why kernels cannot run on a GPU: no back end in this build, no driver or no device. Empty if they can.
std::string unavailable_reason();
/// Waits for all work queued on the stream.
void finish(Stream stream);
}  // namespace cuda

/// Makes the allocations of a copy() between the host and `there` on a simulated GPU. `dtype` is the dtype in transit.
/// Views that are not row-major or have another dtype need a staging buffer.
void ask_as_copy_with_host(Stream stream, const View& there, DType dtype);

/// Throws the DeviceError for a kernel missing from the back end of the stream's device.
[[noreturn]] void throw_no_kernel(Stream stream, std::string_view op);

/// Bytes of scratch of a matrix product on a GPU or a simulated GPU, aligned to `gemm_workspace_alignment`. It lets
/// cuBLASLt split k into at most 16 parts of 256 and add up their sums afterwards. The limit is 32 MiB, NVIDIA's
/// recommendation for Hopper.
constexpr std::int64_t gemm_workspace(const Gemm& shape) {
  const std::int64_t parts = std::min<std::int64_t>(16, (shape.k + 255) / 256);
  if (parts < 2) return 0;
  const auto sums = shape.batch * shape.m * shape.n * static_cast<std::int64_t>(size_of(compute_dtype(shape.dtype)));
  return std::min(std::int64_t{32} << 20, (parts * sums + 255) / 256 * 256);
}
inline constexpr std::size_t gemm_workspace_alignment = 256;

/// Whether a GPU product computes row sums in its epilogue: in half types, from operands that it reads anyway.
constexpr bool sums_rows_in_epilogue(const Gemm& shape) {
  return shape.row_sums && size_of(shape.out_dtype()) == 2 && shape.k > 0;
}
/// Computes the row sums in a separate pass. With `asks_alone` it only makes that pass's allocations, so memory does
/// not depend on whether the library has the epilogue.
void sum_rows_of(Stream stream, const Gemm& shape, const void* a, bool asks_alone = false);

/// Cost of a kernel on a simulated device: bytes read plus written, and floating-point operations.
struct Cost {
  double bytes = 0, operations = 0;
};

inline double bytes_of(const View& view) {
  return view.data ? static_cast<double>(view.count()) * static_cast<double>(size_of(view.dtype)) : 0.0;
}
double bytes_of(const auto&) { return 0.0; }

/// Counts every element of every view once, as read or written. Broadcast views count in full.
Cost traffic(const auto&... operands) { return {(0.0 + ... + bytes_of(operands)), 0}; }

}  // namespace poolgrad::kernels
