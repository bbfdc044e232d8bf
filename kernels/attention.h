// Fused exact attention on raw views: one online softmax over the key tiles that a schedule admits; never a T x T
// matrix. The mathematics is docs/attention.md, section "definition". Shapes: q (B, Nq, Hq, D), k (B, Nk, Hkv, D), v
// (B, Nk, Hkv, Dv), out (B, Nq, Hq, Dv), lse (B, Hq, Nq) in the compute dtype. Hq is a multiple of Hkv. The last
// dimension of every view has stride 1; all other strides are free, so q, k and v may be slices of one packed
// projection.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/random.h"
#include "kernels/schedule/attention_schedule.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// What becomes of a product of a query and a key: s = mod(scale <q, k>) + bias - slope |i - j|, with mod(x) = x or
/// softcap tanh(x / softcap). A pair of bias -infinity does not count. Views without data are absent.
struct AttentionScores {
  double scale = 1.0;
  double softcap = 0.0;   // 0: off
  View bias;              // (B, Hq, Nq, Nk) with any strides, 0 where broadcast, in the compute dtype
  View alibi;             // (Hq) slopes, compute dtype
  View sinks;             // (Hq) logits, compute dtype: e^sink is added to every Z
  double dropout = 0.0;   // probability; 0: off
  RandomKey dropout_key;  // kernels/definition/attention_dropout.h says which pairs stay
  std::int64_t first_batch = 0, first_head = 0;  // of a part of a larger call, for dropout and phases alike
};

/// out and lse from q, k, v over the pairs of the schedule (whose maps have the lengths of q and k). A query that sees
/// nothing gets out 0 and lse -infinity. With `carry_out` (B, Nq, Hq, Dv) and `carry_lse` (B, Hq, Nq), both in the
/// compute dtype, the softmax goes on from there: the result is that of all keys so far; sinks are then not added
/// again. `out` is in the dtype of q or in the compute dtype. It may be carry_out itself or, where Dv == D and no other
/// call reads q, q. lse may be carry_lse; it may have no data.
void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                       const View& k, const View& v, const View& out, const View& lse, const View& carry_out = {},
                       const View& carry_lse = {});

/// delta_i = <dO_i, O_i> - dlse_i, (B, Hq, Nq) contiguous in the compute dtype. grad_out or grad_lse may have no data.
void attention_delta(Stream stream, const View& out, const View& grad_out, const View& grad_lse, const View& delta);

struct AttentionGradients {
  View dq, dk, dv;          // each may have no data: not wanted
  View dbias;               // (B, Hq, Nq, Nk) compute dtype, any strides but none 0; no data: not wanted
  bool accumulate = false;  // add to what is there, instead of writing it; then in the compute dtype
};

/// dq, dk, dv and dbias from the global lse and delta, for the pairs of the schedule; over several schedules that share
/// the queries, the sums are the gradients of the whole (docs/attention.md). Weights are recomputed (Dao et al. 2022).
/// No atomics; every element is one chain of additions in a fixed order, so equal inputs give equal bits for any number
/// of threads. dq may lie over the out that delta was made of. Without grad_out (no data) it counts as 0.
void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
                        const View& k, const View& v, const View& lse, const View& delta, const View& grad_out,
                        const AttentionGradients& gradients);

/// Whether a GPU may use its tensor cores (mma.sync) for attention: of f16 and bf16, for which weights, and gradients
/// of scores, are rounded to that type, as products are, and of f32, of which nothing is rounded: numbers are
/// multiplied in three parts. On unless POOLGRAD_MMA=0; nothing to f64 and other devices.
void allow_mma(bool allowed);
bool mma_allowed();
/// What attention is computed by on a device: the instruction set of the CPU, "cuda cores", or "cuda cores, f16, bf16
/// and f32: mma".
std::string_view attention_backend(Device device);

/// The requests for scratch, in bytes, that one call makes of the pool by the threads and the instruction set in use:
/// an upper bound for almost every pattern. Views need no data.
std::int64_t attention_forward_scratch(const View& q, const View& k, const View& v);
std::array<std::int64_t, 3> attention_backward_scratch(const View& q, const View& k, const View& v);

}  // namespace poolgrad::kernels
