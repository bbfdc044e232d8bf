// The back ends behind gemm(). Each takes a product with m, n and batch above 0 and a floating dtype.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/gemm.h"

namespace poolgrad::kernels {

/// Our own packed kernel: every floating dtype, any k.
void gemm_native(const Gemm& shape, const void* a, const void* b, void* c);
/// Bytes that gemm_native() asks the pool for.
std::int64_t gemm_native_scratch(const Gemm& shape);

/// f32 with k > 0.
void gemm_eigen(const Gemm& shape, const void* a, const void* b, void* c);
std::string_view eigen_version();

/// Whether gemm_onednn takes the product: f32, and bf16 where the CPU multiplies it; most forms. Always false in a
/// build without oneDNN.
bool onednn_takes(const Gemm& shape);
void gemm_onednn(const Gemm& shape, const void* a, const void* b, void* c);
/// Bytes that gemm_onednn() asks the pool for.
std::int64_t gemm_onednn_scratch(const Gemm& shape);
/// "oneDNN 2.6.3", or "" in a build without it.
std::string_view onednn_version();

}  // namespace poolgrad::kernels
