// Attention by tensor cores, of operands that mma_takes() (kernels/schedule/device_program.h); everything else is for
// the portable kernels.
#pragma once

#include <initializer_list>
#include <vector>

#include "kernels/attention.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::cuda {

template <class T>
struct ForwardCall;
template <class T>
struct GradientCall;

/// Whether a block of the device has room for them: rows of f32 of more than 64 elements take 131 KiB of shared memory,
/// which GPUs for displays lack (compute capability 8.6, 8.9, 12.0). Elsewhere rows of 128 keep to their 99 KiB.
bool mma_fits(int device, std::initializer_list<const View*> operands);

/// Whether f16 and bf16 are multiplied by warpgroups (wgmma), which GPUs of compute capability 9.0 have alone, and code
/// for them (90a). Not if POOLGRAD_WGMMA=0, or after allow_warpgroups(false): for tests, and to compare.
bool has_warpgroups(int device);
void allow_warpgroups(bool allowed);
bool warpgroups_allowed();

/// As kernels::attention_forward, by a program in tiles of 64 rows.
void attend_by_mma(Stream stream, const AttentionProgram& program, const AttentionScores& scores, const View& q,
                   const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                   const View& carry_lse);

/// What gradients.cu makes of one or two of dq, dk and dv, whose tiles visit the same rows, with dq of dbias too; the
/// program is in tiles of 64 rows.
void sum_gradients_by_mma(Stream stream, const std::vector<GradientCall<float>>& calls, const View& visited,
                          const View& visited_out);

/// The same for f16 or bf16, where has_warpgroups().
void attend_by_warpgroups(Stream stream, const ForwardCall<float>& call, DType dtype);
void sum_gradients_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls, DType dtype);

}  // namespace poolgrad::kernels::cuda
