// Fused exact attention on raw views: one online softmax over the key tiles that a schedule admits. It never stores a T
// x T matrix. docs/reference/attention.md, section "definition", states the mathematics. Shapes: q (B, Nq, Hq, D), k
// (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv), out (B, Nq, Hq, Dv), lse (B, Hq, Nq) in the compute dtype. Hq is a multiple of
// Hkv. The last dimension of every view has stride 1. The other strides are free, so q, k and v may be slices of one
// packed projection.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/random.h"
#include "kernels/schedule/attention_schedule.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Score of a query and a key: s = mod(scale <q, k>) + bias - slope |i - j|. mod(x) is x, or softcap tanh(x / softcap)
/// with a softcap. A bias of -infinity masks the pair. A view without data is absent.
struct AttentionScores {
  double scale = 1.0;
  double softcap = 0.0;   // 0: off
  View bias;              // (B, Hq, Nq, Nk) in the compute dtype; any strides, stride 0 broadcasts
  View alibi;             // (Hq) slopes, compute dtype
  View sinks;             // (Hq) logits, compute dtype: e^sink is added to every Z
  double dropout = 0.0;   // probability; 0: off
  RandomKey dropout_key;  // kernels/functors/attention_dropout.h defines which pairs are kept
  std::int64_t first_batch = 0, first_head = 0;  // offset in a larger call, for dropout and phases
};

/// Computes out and lse from q, k, v over the pairs of the schedule, whose position maps have the lengths of q and k. A
/// query without keys gets out 0 and lse -infinity. `carry_out` (B, Nq, Hq, Dv) and `carry_lse` (B, Hq, Nq), both in
/// the compute dtype, continue the softmax of earlier keys. The result then covers all keys so far, and sinks are not
/// added again. `out` has the dtype of q or the compute dtype. `out` may alias carry_out, or q if Dv == D and no other
/// call reads q. `lse` may alias carry_lse, or have no data.
void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                       const View& k, const View& v, const View& out, const View& lse, const View& carry_out = {},
                       const View& carry_lse = {});

/// delta_i = <dO_i, O_i> - dlse_i, (B, Hq, Nq) contiguous in the compute dtype. grad_out or grad_lse may have no data.
void attention_delta(Stream stream, const View& out, const View& grad_out, const View& grad_lse, const View& delta);

struct AttentionGradients {
  View dq, dk, dv;          // a view without data is not computed
  View dbias;               // (B, Hq, Nq, Nk), compute dtype, no stride 0; without data it is not computed
  bool accumulate = false;  // add to the old contents; dq, dk, dv are then in the compute dtype
};

/// Computes dq, dk, dv and dbias from the global lse and delta, for the pairs of the schedule. The sums over several
/// schedules of the same queries are the gradients of the whole (docs/reference/attention.md). It recomputes the
/// weights (Dao et al. 2022). It uses no atomics: every element is one chain of additions in a fixed order. Equal
/// inputs therefore give equal bits for any number of threads. dq may alias the out that delta was computed from. A
/// grad_out without data counts as 0.
void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                        const View& k, const View& v, const View& lse, const View& delta, const View& grad_out,
                        const AttentionGradients& gradients);

/// The gated delta rule (Yang et al. 2025): S_t = e^gate_t S_{t-1} + k_t u_t^T and out_t = S_t^T q_t, with
/// u_t = beta_t (v_t - e^gate_t S_{t-1}^T k_t), or beta_t v_t without `delta`. q, k (B, T, H, K), v (B, T, H, V) have
/// one floating dtype. beta, gate (B, T, H) and the states (B, H, K, V) are in its compute dtype; states are
/// contiguous.
struct DeltaRule {
  View q, k, v, beta, gate;
  View state;               // before the first position; without data: 0
  bool delta = true;        // false: linear attention
  std::int64_t chunk = 64;  // positions computed by products; at least 1
};
struct DeltaRuleGradients {
  View dq, dk, dv, dbeta, dgate;
  View dstate;  // without data it is not computed
};
/// Computes out (B, T, H, V), contiguous, and the last state. One thread works on a head of a sequence, in a fixed
/// order: equal bits for any number of threads. Only CPUs have this kernel and its backward.
void delta_rule(Stream stream, const DeltaRule& rule, const View& out, const View& last);
/// Computes all gradients, contiguous. A grad_out or grad_last without data counts as 0. It repeats the forward pass;
/// each thread keeps V elements a position and one state a chunk.
void delta_rule_backward(Stream stream, const DeltaRule& rule, const View& grad_out, const View& grad_last,
                         const DeltaRuleGradients& gradients);

/// Causal convolution of each channel: out_t = sum_i weight_i x_(t - N + 1 + i), for x and out (B, T, C), weight (C, N)
/// and the inputs before x, `before` (B, N - 1, C): 0 without data. All are contiguous and have one floating dtype.
/// Sums are in the compute dtype. Only CPUs have this kernel and its backward.
void short_convolution(Stream stream, const View& x, const View& weight, const View& before, const View& out);
/// Computes the gradients that have data, with equal bits for any number of threads.
void short_convolution_backward(Stream stream, const View& x, const View& weight, const View& before,
                                const View& grad_out, const View& dx, const View& dweight, const View& dbefore);

/// Whether a GPU may use its tensor cores (mma.sync) for attention. In f16 and bf16, weights and gradients of scores
/// are then rounded to that type. In f32 nothing is rounded: each number is multiplied in three parts. On unless
/// POOLGRAD_MMA=0. No effect on f64 and other devices.
void allow_mma(bool allowed);
bool mma_allowed();
/// Returns how a device computes attention: the instruction set of the CPU, "cuda cores", or "cuda cores, f16, bf16 and
/// f32: mma".
std::string_view attention_backend(Device device);

/// Bytes of each scratch allocation of one call, for the current threads and instruction set. An upper bound for almost
/// every pattern. Views need no data.
std::int64_t attention_forward_scratch(const View& q, const View& k, const View& v);
std::array<std::int64_t, 3> attention_backward_scratch(const View& q, const View& k, const View& v);

}  // namespace poolgrad::kernels
