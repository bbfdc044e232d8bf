// Matrix products: row-major, transposes, leading dimensions, batch strides, alpha, beta and bias. CPU back ends:
// "poolgrad", the project's packed kernel, is always available and takes the cases that the others do not. It gives
// equal bits for any number of threads. "eigen", for f32, is always available; "onednn" if the build found it.
// POOLGRAD_GEMM selects one. "auto", the default, uses poolgrad, except for bf16 if oneDNN is available and the CPU has
// bf16 products. A GPU uses cuBLASLt.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/dtype.h"

namespace poolgrad::kernels {

/// C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C (+ bias[n] on every row), repeated `batch` times. op(A) is
/// A[m,k], or the transpose of A[k,m] with `transpose_a`. Leading dimensions and batch strides are in elements. A batch
/// stride of 0 repeats that operand. All operands have one floating dtype. f16 and bf16 accumulate in f32. With
/// `f32_out` they give C in f32, so several products add up without rounding in between. k == 0 gives beta * C (+
/// bias). With beta == 0, C is not read.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t batch = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  double alpha = 1.0, beta = 0.0;
  DType dtype = DType::f32;
  bool f32_out = false;        // C and the bias are f32 if `dtype` is f16 or bf16; no effect on other dtypes
  const void* bias = nullptr;  // n elements of C's dtype, or none
  void* row_sums = nullptr;    // m elements of C's dtype: row sums of op(A), or none; batch 1, no bias

  DType out_dtype() const { return f32_out && dtype != DType::f64 ? DType::f32 : dtype; }
};

/// Computes C and row_sums, deterministically. Throws DTypeError for a dtype that is not floating. Throws ValueError
/// for row sums with a batch or a bias, and for an unknown name in POOLGRAD_GEMM. On a GPU it throws DeviceError if
/// cuBLASLt is missing.
void gemm(Stream stream, const Gemm& shape, const void* a, const void* b, void* c);

/// Sets the CPU back end of the process: "auto", "poolgrad", "eigen" or "onednn". Throws ValueError for any other name,
/// and for onednn in a build without it.
void set_gemm_backend(std::string_view name);
/// Returns the current CPU back end: "poolgrad", "Eigen 3.4.0", "oneDNN 2.6.3", or "poolgrad, bf16: oneDNN 2.6.3".
std::string_view gemm_backend();

/// Whether a GPU may round the operands of f32 products to TF32 (11 significant bits) for its tensor cores. Off unless
/// POOLGRAD_TF32=1. No effect on other dtypes and devices.
void allow_tf32(bool allowed);
bool tf32_allowed();

}  // namespace poolgrad::kernels
