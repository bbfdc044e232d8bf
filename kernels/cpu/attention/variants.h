// Each instruction-set variant compiles the attention kernels once, into a namespace of its name: the macro
// POOLGRAD_VARIANT (cmake/PoolgradIsaVariant.cmake). `baseline` is the library's own instruction set.
#pragma once

#include <array>

#include "kernels/cpu/kernels.h"

#ifndef POOLGRAD_VARIANT
#define POOLGRAD_VARIANT baseline
#endif

// With an empty `instead` the calls compute.
#define POOLGRAD_DECLARE_ATTENTION(variant)                                 \
  namespace variant {                                                       \
  decltype(on_cpu::plan_attention_forward) attention_forward;               \
  decltype(on_cpu::plan_attention_backward) attention_backward;             \
  decltype(kernels::attention_forward_scratch) attention_forward_scratch;   \
  decltype(kernels::attention_backward_scratch) attention_backward_scratch; \
  }

namespace poolgrad::kernels {
POOLGRAD_DECLARE_ATTENTION(baseline)
POOLGRAD_DECLARE_ATTENTION(avx512)
}  // namespace poolgrad::kernels

#undef POOLGRAD_DECLARE_ATTENTION
