// Attention by tensor cores, of operands that mma_takes() (kernels/schedule/device_program.h); everything else is for
// the portable kernels.
#pragma once

#include <initializer_list>
#include <vector>

#include "kernels/attention.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::cuda {

/// Whether a block of the device has room for them: rows of f32 of more than 64 elements take 131 KiB of shared memory,
/// which GPUs for displays lack (compute capability 8.6, 8.9, 12.0). Elsewhere rows of 128 keep to their 99 KiB.
bool mma_fits(int device, std::initializer_list<const View*> operands);

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
