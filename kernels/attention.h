// Fused exact attention on raw views: one online softmax over the key tiles that a schedule admits; never a T x T
// matrix. The mathematics is docs/attention.md, section "definition". Shapes: q (B, Nq, Hq, D), k (B, Nk, Hkv, D), v
// (B, Nk, Hkv, Dv), out (B, Nq, Hq, Dv), lse (B, Hq, Nq) in the compute dtype. Hq is a multiple of Hkv. The last
// dimension of every view has stride 1; all other strides are free, so q, k and v may be slices of one packed
// projection.
#pragma once

#include <cstdint>
#include <limits>

#include "allocator/stream.h"
#include "kernels/attention_schedule.h"
#include "kernels/random.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Which keys each query sees: absolute positions q_pos(i) = i + q_offset, k_pos(j) = j; a key is admitted when
/// -left <= k_pos - q_pos <= right. Further patterns add generators here.
struct BandSchedule {
  static constexpr std::int64_t unbounded = std::numeric_limits<std::int64_t>::max();
  std::int64_t left = unbounded;
  std::int64_t right = unbounded;
  std::int64_t q_offset = 0;

  /// The half-open range of key indices that query i sees among `keys` keys; begin == end where it sees none.
  struct Range {
    std::int64_t begin, end;
  };
  POOLGRAD_HD Range keys_of(std::int64_t i, std::int64_t keys) const {
    const std::int64_t position = i + q_offset;
    std::int64_t begin = left == unbounded || left >= position ? 0 : position - left;
    std::int64_t end = right == unbounded || right >= keys - 1 - position ? keys : position + right + 1;
    if (end > keys) end = keys;
    if (begin > end) begin = end = end < 0 ? 0 : end;
    return {begin, end};
  }

  /// The same pairs with queries and keys exchanged: transposed().keys_of(j, queries) are the queries that see key j.
  POOLGRAD_HD BandSchedule transposed() const { return {right, left, -q_offset}; }

  /// Pairs of a query and a key that it sees.
  double count_pairs(std::int64_t queries, std::int64_t keys) const {
    double pairs = 0;
    for (std::int64_t i = 0; i < queries; ++i) {
      const Range range = keys_of(i, keys);
      pairs += static_cast<double>(range.end - range.begin);
    }
    return pairs;
  }
};

/// out and lse from q, k, v. A query that sees no key gets out 0 and lse -infinity.
void attention_forward(Stream stream, const BandSchedule& schedule, double scale, View q, View k, View v, View out,
                       View lse);

/// Gradients of <grad_out, out> + <grad_lse, lse>; dq, dk and dv are overwritten. `grad_lse` may have data == nullptr
/// (no gradient for lse) and any strides. Weights are recomputed from lse (Dao et al. 2022); no atomics, and every
/// element is one chain of additions in a fixed order, so equal inputs give equal bits for any number of threads.
/// Workspace: delta, B * Hq * Nq in the compute dtype; on the CPU also tiles and, with many heads, one kv head's dq for
/// each thread.
void attention_backward(Stream stream, const BandSchedule& schedule, double scale, View q, View k, View v, View out,
                        View lse, View grad_out, View grad_lse, View dq, View dk, View dv);

/// What becomes of a product of a query and a key: s = mod(scale <q, k>) + bias - slope |i - j|, with mod(x) = x or
/// softcap tanh(x / softcap). Views without data are absent.
struct AttentionScores {
  double scale = 1.0;
  double softcap = 0.0;   // 0: off
  View bias;              // (B, Hq, Nq, Nk) with any strides, 0 where broadcast, in the compute dtype
  View alibi;             // (Hq) slopes, compute dtype
  View sinks;             // (Hq) logits, compute dtype: e^sink is added to every Z
  double dropout = 0.0;   // probability; 0: off
  RandomKey dropout_key;  // kernels/attention_dropout.h says which pairs stay
  std::int64_t first_batch = 0, first_head = 0;  // of a part of a larger call, for dropout and phases alike
};

/// out and lse from q, k, v over the pairs of the schedule (whose maps have the lengths of q and k). A query that sees
/// nothing gets out 0 and lse -infinity. With `carry_out` (B, Nq, Hq, Dv) and `carry_lse` (B, Hq, Nq), both in the
/// compute dtype, the softmax goes on from there: the result is that of all keys so far; sinks are then not added
/// again. `out` is in the dtype of q or in the compute dtype. It may be carry_out itself or, where Dv == D and no other
/// call reads q, q. lse may be carry_lse; it may have no data.
void attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q, View k,
                       View v, View out, View lse, View carry_out = {}, View carry_lse = {});

/// delta_i = <dO_i, O_i> - dlse_i, (B, Hq, Nq) contiguous in the compute dtype. grad_out or grad_lse may have no data.
void attention_delta(Stream stream, View out, View grad_out, View grad_lse, View delta);

struct AttentionGradients {
  View dq, dk, dv;          // each may have no data: not wanted
  View dbias;               // (B, Hq, Nq, Nk) compute dtype, any strides but none 0; no data: not wanted
  bool accumulate = false;  // add to what is there, instead of writing it; then in the compute dtype
};

/// dq, dk, dv and dbias from the global lse and delta, for the pairs of the schedule; over several schedules that share
/// the queries, the sums are the gradients of the whole (docs/attention.md). Weights are recomputed (Dao et al. 2022).
/// No atomics; every element is one chain of additions in a fixed order, so equal inputs give equal bits for any number
/// of threads. dq may lie over the out that delta was made of. Without grad_out (no data) it counts as 0.
void attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, View q, View k,
                        View v, View lse, View delta, View grad_out, const AttentionGradients& gradients);

}  // namespace poolgrad::kernels
