// The variant of the attention kernels that the CPU runs.
#include "kernels/cpu/attention/variants.h"

#include "kernels/cpu/instruction_sets.h"

#if defined(POOLGRAD_AVX512_VARIANT)
#define POOLGRAD_CALL_VARIANT(call) instruction_set_in_use().avx512 ? avx512::call : baseline::call
#else
#define POOLGRAD_CALL_VARIANT(call) baseline::call
#endif

namespace poolgrad::kernels {

void on_cpu::plan_attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                    const View& q, const View& k, const View& v, const View& out, const View& lse,
                                    const View& carry_out, const View& carry_lse, const Instead& instead) {
  POOLGRAD_CALL_VARIANT(attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse, instead));
}

void on_cpu::plan_attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                     const View& q, const View& k, const View& v, const View& lse, const View& delta,
                                     const View& grad_out, const AttentionGradients& gradients,
                                     const Instead& instead) {
  POOLGRAD_CALL_VARIANT(
      attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients, instead));
}

void on_cpu::attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                               const View& q, const View& k, const View& v, const View& out, const View& lse,
                               const View& carry_out, const View& carry_lse) {
  plan_attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse, {});
}

void on_cpu::attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                const View& q, const View& k, const View& v, const View& lse, const View& delta,
                                const View& grad_out, const AttentionGradients& gradients) {
  plan_attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients, {});
}

std::int64_t attention_forward_scratch(const View& q, const View& k, const View& v) {
  return POOLGRAD_CALL_VARIANT(attention_forward_scratch(q, k, v));
}

std::array<std::int64_t, 3> attention_backward_scratch(const View& q, const View& k, const View& v) {
  return POOLGRAD_CALL_VARIANT(attention_backward_scratch(q, k, v));
}

}  // namespace poolgrad::kernels
