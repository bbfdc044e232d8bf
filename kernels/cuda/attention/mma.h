// Attention by tensor cores, of operands that mma_takes() (kernels/schedule/device_program.h); everything else is for
// the portable kernels.
#pragma once

#include <vector>

#include "kernels/attention.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::cuda {

/// As kernels::attention_forward, by a program in tiles of 64 rows.
void attend_by_mma(Stream stream, const AttentionProgram& program, const AttentionScores& scores, const View& q,
                   const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                   const View& carry_lse);

/// What gradients.cu makes of one or two of dq, dk and dv, whose tiles visit the same rows, with dq of dbias too; the
/// program is in tiles of 64 rows.
template <class T>
struct GradientCall;
void sum_gradients_by_mma(Stream stream, const std::vector<GradientCall<float>>& calls, const View& visited,
                          const View& visited_out);

}  // namespace poolgrad::kernels::cuda
