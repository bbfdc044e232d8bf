// Attention of f16 and bf16 by tensor cores, where it is allowed (kernels/attention.h) and its kernels take the
// operands; everything else is for the portable ones.
#pragma once

#include <initializer_list>

#include "kernels/attention.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::cuda {

/// Whether they do: one dtype of 16 bits, rows of 16 to 128 elements, a multiple of 16, at multiples of 16 bytes.
bool mma_takes(std::initializer_list<const View*> operands);

/// As kernels::attention_forward, by a program in tiles of 64 rows.
void attend_by_mma(Stream stream, const AttentionProgram& program, const AttentionScores& scores, const View& q,
                   const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                   const View& carry_lse);

/// What gradients.cu makes of one of dq, dk and dv, with dq of dbias too; the program is in tiles of 64 rows.
template <class T>
struct GradientCall;
void sum_gradients_by_mma(Stream stream, const GradientCall<float>& call);

}  // namespace poolgrad::kernels::cuda
