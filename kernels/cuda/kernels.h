// The kernels of the CUDA back end, as many as there are so far.
#pragma once

#include "kernels/dispatch.h"

namespace poolgrad::kernels::on_cuda {

// clang-format off
#define POOLGRAD_CUDA_KERNELS(KERNEL) \
  KERNEL(unary) KERNEL(unary_backward) KERNEL(binary) KERNEL(axpby) KERNEL(silu_mul) KERNEL(silu_mul_backward) \
  KERNEL(where) KERNEL(copy) KERNEL(fill) KERNEL(arange) \
  KERNEL(reduce) KERNEL(argmax) KERNEL(argmin) KERNEL(argsort) KERNEL(cumulative_sum) KERNEL(add_sums_of_squares) \
  KERNEL(softmax) KERNEL(softmax_backward) KERNEL(log_softmax) KERNEL(log_softmax_backward) KERNEL(log_sum_exp) \
  KERNEL(layer_norm) KERNEL(layer_norm_backward) KERNEL(rms_norm) KERNEL(rms_norm_backward) \
  KERNEL(cross_entropy) KERNEL(cross_entropy_backward) KERNEL(rope) \
  KERNEL(check_indices) KERNEL(index_select) KERNEL(index_add) KERNEL(gather) KERNEL(scatter) \
  KERNEL(scatter_add) KERNEL(embedding) KERNEL(embedding_backward) \
  KERNEL(uniform) KERNEL(normal) KERNEL(dropout) KERNEL(adamw) KERNEL(sgd) KERNEL(gemm) \
  KERNEL(attention_forward) KERNEL(attention_delta) KERNEL(attention_backward)
// clang-format on

#define POOLGRAD_KERNEL(name) decltype(kernels::name) name;
POOLGRAD_CUDA_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL

}  // namespace poolgrad::kernels::on_cuda
