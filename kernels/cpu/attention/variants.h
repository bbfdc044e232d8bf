// The attention kernels are compiled once for each variant of the instruction set, each time into a namespace of that
// name: the macro POOLGRAD_VARIANT (cmake/PoolgradIsaVariant.cmake). `baseline` is what the library is compiled for.
#pragma once

#include <array>

#include "kernels/attention.h"

#ifndef POOLGRAD_VARIANT
#define POOLGRAD_VARIANT baseline
#endif

#define POOLGRAD_DECLARE_ATTENTION(variant)                                                                          \
  namespace variant {                                                                                                \
  void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q,    \
                         View k, View v, View out, View lse, View carry_out, View carry_lse);                        \
  void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q,   \
                          View k, View v, View lse, View delta, View grad_out, const AttentionGradients& gradients); \
  std::int64_t attention_forward_scratch(View q, View k, View v);                                                    \
  std::array<std::int64_t, 3> attention_backward_scratch(View q, View k, View v);                                    \
  }

namespace poolgrad::kernels {
POOLGRAD_DECLARE_ATTENTION(baseline)
POOLGRAD_DECLARE_ATTENTION(avx512)
}  // namespace poolgrad::kernels

#undef POOLGRAD_DECLARE_ATTENTION
