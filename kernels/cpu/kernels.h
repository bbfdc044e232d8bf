// CPU kernels. Their streams belong to the CPU; they allocate scratch from its pool.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/dispatch.h"

namespace poolgrad::kernels {
namespace on_cpu {

#define POOLGRAD_KERNEL(name) decltype(kernels::name) name;
POOLGRAD_KERNELS(POOLGRAD_KERNEL)
POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL

// Bytes of scratch of each call. The kernels use the same functions to size their scratch.
std::int64_t gemm_scratch(const Gemm& shape);  // 0: the back end allocates no scratch from the pool
std::int64_t reduce_scratch(const View& out, const View& x);
std::int64_t argsort_scratch(const View& x);
std::int64_t sums_of_squares_scratch(std::span<const View> all);
std::int64_t norm_backward_scratch(const View& x);
std::int64_t by_index_scratch(std::int64_t limit, const View& index);  // index_add and embedding_backward

std::int64_t delta_rule_scratch(const DeltaRule& rule);
std::int64_t delta_rule_backward_scratch(const DeltaRule& rule);
std::int64_t short_convolution_scratch(const View& x, const View& weight, bool sums);  // sums: of dweight

/// Plans an attention call and allocates its scratch from the pool of `stream`. If `instead` is set, it runs with the
/// scratch allocated, in place of the computation.
using Instead = std::function<void()>;
void plan_attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                            const View& q, const View& k, const View& v, const View& out, const View& lse,
                            const View& carry_out, const View& carry_lse, const Instead& instead);
void plan_attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                             const View& q, const View& k, const View& v, const View& lse, const View& delta,
                             const View& grad_out, const AttentionGradients& gradients, const Instead& instead);

}  // namespace on_cpu

inline constexpr KernelTable cpu_kernels{
#define POOLGRAD_KERNEL(name) .name = on_cpu::name,
    POOLGRAD_KERNELS(POOLGRAD_KERNEL) POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

}  // namespace poolgrad::kernels
