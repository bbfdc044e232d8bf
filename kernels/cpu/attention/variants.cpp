// The variant of the attention kernels that the CPU runs.
#include "kernels/cpu/attention/variants.h"
#include "kernels/attention.h"
#include "kernels/cpu/instruction_sets.h"

namespace poolgrad::kernels {

void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q, View k,
                       View v, View out, View lse, View carry_out, View carry_lse) {
#if defined(POOLGRAD_AVX512_VARIANT)
  if (instruction_set_in_use().avx512)
    return avx512::attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse);
#endif
  baseline::attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse);
}

void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q, View k,
                        View v, View lse, View delta, View grad_out, const AttentionGradients& gradients) {
#if defined(POOLGRAD_AVX512_VARIANT)
  if (instruction_set_in_use().avx512)
    return avx512::attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients);
#endif
  baseline::attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients);
}

std::int64_t attention_forward_scratch(View q, View k, View v) {
#if defined(POOLGRAD_AVX512_VARIANT)
  if (instruction_set_in_use().avx512) return avx512::attention_forward_scratch(q, k, v);
#endif
  return baseline::attention_forward_scratch(q, k, v);
}

std::array<std::int64_t, 3> attention_backward_scratch(View q, View k, View v) {
#if defined(POOLGRAD_AVX512_VARIANT)
  if (instruction_set_in_use().avx512) return avx512::attention_backward_scratch(q, k, v);
#endif
  return baseline::attention_backward_scratch(q, k, v);
}

}  // namespace poolgrad::kernels
