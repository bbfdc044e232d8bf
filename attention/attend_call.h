// What the parts of attend() hand to each other: the operands as kernels want them, and everything else about a call.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attend.h"
#include "autograd/engine/node.h"
#include "kernels/attention.h"

namespace poolgrad::attention {

/// Throws what attend() promises; true where a gradient is wanted.
bool check_attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);
/// Throws unless `padding` is undefined or fits `keys` keys of the batch of `q`.
void check_key_padding(const char* op, const Tensor& q, std::int64_t keys, const Tensor& padding);

/// q, k and v with stride 1 in the last dimension; bias (key padding included), alibi and sinks in the compute dtype,
/// or undefined.
struct AttendOperands {
  Tensor q, k, v, bias, alibi, sinks;

  std::int64_t batch() const { return q.size(0); }
  std::int64_t queries() const { return q.size(1); }
  std::int64_t keys() const { return k.size(1); }
  std::int64_t heads() const { return q.size(2); }
};

struct AttendCall {
  Pattern pattern = Pattern::dense();
  Pattern::Compiled compiled;
  std::int64_t q_offset = 0;        // position of query 0
  kernels::PositionMap keys;        // of all, also where they are divided among ranks
  kernels::AttentionScores scores;  // but for the views of operands
  bool dq_over_out = false;

  /// `scores` with the views of these operands.
  kernels::AttentionScores scores_of(const AttendOperands& x) const;
};

AttendOperands prepare_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);
/// (B, 1, 1, Nk): -infinity for padding, 0 for the other keys; undefined where there is none.
Tensor padding_bias(const Tensor& padding, DType dtype);
/// All of the call but its passes, for whole sequences of `queries` and `keys`. Takes a range of the generator where
/// weights are dropped.
AttendCall prepare_call(std::int64_t width, std::int64_t queries, std::int64_t keys, const Pattern& pattern,
                        const AttendOptions& options);
/// What attend() computes, with every score in memory; differentiable any number of times.
Attended attend_by_definition(const AttendOperands& x, const AttendCall& call);

/// x itself, or a copy with stride 1 in the last dimension.
Tensor with_unit_rows(const Tensor& x);

/// Throws ValueError unless the result may be written over q.
void check_out_over_q(const AttendCall& call, const AttendOperands& x, bool wants_gradient);

/// Gradients of q, k, v, bias and sinks by the fused kernels; undefined where `backward` wants none.
Gradients attend_gradients(const AttendCall& call, const AttendOperands& x, Tensor out, const Tensor& lse,
                           const BackwardCall& backward);

/// (Hq): the sinks' share of the gradient, summed over these queries.
Tensor sinks_gradient(const Tensor& sinks, const Tensor& lse, const Tensor& delta);

/// The gradient of a bias that is broadcast, summed over what broadcasting added; never more than a few rows of it are
/// in memory at the bias's full shape.
Tensor broadcast_bias_gradient(const AttendCall& call, const AttendOperands& x, const Tensor& lse, const Tensor& delta,
                               const Tensor& grad_out);

}  // namespace poolgrad::attention
