// Back ends of gemm(). Each needs m, n and batch above 0 and a floating dtype.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/gemm.h"

namespace poolgrad::kernels {

/// The project's packed kernel: every floating dtype, any k.
void gemm_native(const Gemm& shape, const void* a, const void* b, void* c);
/// Bytes of scratch that gemm_native() allocates from the pool.
std::int64_t gemm_native_scratch(const Gemm& shape);

/// Needs f32 and k > 0.
void gemm_eigen(const Gemm& shape, const void* a, const void* b, void* c);
std::string_view eigen_version();

/// Whether gemm_onednn supports the product: most forms of f32, and of bf16 if the CPU multiplies it. Always false in a
/// build without oneDNN.
bool onednn_takes(const Gemm& shape);
void gemm_onednn(const Gemm& shape, const void* a, const void* b, void* c);
/// Bytes of scratch that gemm_onednn() allocates from the pool.
std::int64_t gemm_onednn_scratch(const Gemm& shape);
/// "oneDNN 2.6.3", or "" in a build without oneDNN.
std::string_view onednn_version();

}  // namespace poolgrad::kernels
