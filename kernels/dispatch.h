// Where a kernel call goes. Every back end is one table of functions with the signatures of the public ones; the public
// functions (dispatch.cpp) check what all devices check alike, and call the table of the stream's device. A simulated
// device has none: its clock advances by what the call would cost, and its pool is asked for the same scratch.
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
  KERNEL(softmax) KERNEL(softmax_backward) KERNEL(log_softmax) KERNEL(log_softmax_backward) KERNEL(log_sum_exp) \
  KERNEL(layer_norm) KERNEL(layer_norm_backward) KERNEL(rms_norm) KERNEL(rms_norm_backward) \
  KERNEL(cross_entropy) KERNEL(cross_entropy_backward) KERNEL(rope) \
  KERNEL(check_indices) KERNEL(index_select) KERNEL(index_add) KERNEL(gather) KERNEL(scatter) \
  KERNEL(scatter_reduce) KERNEL(embedding) KERNEL(embedding_backward) \
  KERNEL(uniform) KERNEL(normal) KERNEL(dropout) KERNEL(adamw) KERNEL(sgd) KERNEL(rmsprop) \
  KERNEL(add_gradient) KERNEL(weighted_sum) KERNEL(gemm) \
  KERNEL(attention_forward) KERNEL(attention_delta) KERNEL(attention_backward)
// clang-format on

namespace poolgrad::kernels {

/// A back end: a null entry is a kernel that it does not have. Operands are checked, and streams are of its device.
struct KernelTable {
#define POOLGRAD_KERNEL(name) decltype(&kernels::name) name = nullptr;
  POOLGRAD_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

/// The kernels of CUDA devices: in a build without nvcc, an empty table (kernels/cuda/stub.cpp).
extern const KernelTable cuda_kernels;

namespace cuda {
/// Why kernels cannot run on a GPU: no back end in this build, no driver or no device. Empty where they can.
std::string unavailable_reason();
/// Returns once what has been queued on the stream is done.
void finish(Stream stream);
}  // namespace cuda

/// Asks a simulated device that stands for a GPU for what copy() would, between the host and `there`, with elements of
/// `dtype` travelling: memory in which what is not row-major or of another dtype is made so.
void ask_as_copy_with_host(Stream stream, const View& there, DType dtype);

/// Throws the DeviceError of a call that the back end of the stream's device does not have.
[[noreturn]] void throw_no_kernel(Stream stream, std::string_view op);

/// Bytes of scratch that a product asks for on a GPU, aligned to `gemm_workspace_alignment`, and on a simulated device
/// that stands for one: for cuBLASLt to cut k into parts of 256, at most 16, whose sums are added up afterwards. More
/// than 32 MiB, what NVIDIA recommends for Hopper, or more parts, have no use.
constexpr std::int64_t gemm_workspace(const Gemm& shape) {
  const std::int64_t parts = std::min<std::int64_t>(16, (shape.k + 255) / 256);
  if (parts < 2) return 0;
  const auto sums = shape.batch * shape.m * shape.n * static_cast<std::int64_t>(size_of(compute_dtype(shape.dtype)));
  return std::min(std::int64_t{32} << 20, (parts * sums + 255) / 256 * 256);
}
inline constexpr std::size_t gemm_workspace_alignment = 256;

/// Whether a product on a GPU makes the sums of rows in its epilogue: in half types, from what it reads anyway.
constexpr bool sums_rows_in_epilogue(const Gemm& shape) {
  return shape.row_sums && size_of(shape.out_dtype()) == 2 && shape.k > 0;
}
/// The sums of rows in a pass of their own; or that pass's requests for memory alone, so that a library which turns out
/// to have no such epilogue changes none.
void sum_rows_of(Stream stream, const Gemm& shape, const void* a, bool asks_alone = false);

/// What a kernel costs a simulated device: bytes read plus written, and floating-point operations.
struct Cost {
  double bytes = 0, operations = 0;
};

inline double bytes_of(const View& view) {
  return view.data ? static_cast<double>(view.count()) * static_cast<double>(size_of(view.dtype)) : 0.0;
}
double bytes_of(const auto&) { return 0.0; }

/// Every element of every view among the operands read or written once; views that broadcast count in full.
Cost traffic(const auto&... operands) { return {(0.0 + ... + bytes_of(operands)), 0}; }

}  // namespace poolgrad::kernels
