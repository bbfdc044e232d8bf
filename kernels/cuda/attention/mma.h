// Attention on tensor cores, for operands that mma_takes() accepts (kernels/schedule/device_program.h). The portable
// kernels handle all other operands.
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

/// Returns whether the shared memory of a block suffices for the operands. f32 rows of more than 64 elements need 131
/// KiB. GPUs of compute capability 8.6, 8.9 and 12.0 lack it. Rows of 128 elements in other types stay within their 99
/// KiB.
bool mma_fits(int device, std::initializer_list<const View*> operands);

/// Returns whether f16 and bf16 use warpgroup products (wgmma). They need compute capability 9.0 and code for sm_90a.
/// POOLGRAD_WGMMA=0 or allow_warpgroups(false) turns them off, for tests and comparisons.
bool has_warpgroups(int device);
void allow_warpgroups(bool allowed);
bool warpgroups_allowed();

/// Same contract as kernels::attention_forward; the program must use tiles of 64 rows.
void attend_by_mma(Stream stream, const AttentionProgram& program, const AttentionScores& scores, const View& q,
                   const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                   const View& carry_lse);

/// Computes one or two of dq, dk and dv, as gradients.cu does; their tiles visit the same rows. The dq call also
/// computes dbias. The program must use tiles of 64 rows.
void sum_gradients_by_mma(Stream stream, const std::vector<GradientCall<float>>& calls, const View& visited,
                          const View& visited_out);

/// The same for f16 and bf16; requires has_warpgroups().
void attend_by_warpgroups(Stream stream, const ForwardCall<float>& call, DType dtype);
void sum_gradients_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls, DType dtype);

}  // namespace poolgrad::kernels::cuda
