// The interface between the parts of attend(): operands in the form of kernels, and the other settings of a call.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/attend.h"
#include "autograd/engine/node.h"
#include "kernels/attention.h"

namespace poolgrad::attention {

/// Throws the errors that attend() promises. Returns whether a gradient is wanted.
bool check_attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);
using AttendFunction =
    std::function<Attended(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern&, const AttendOptions&)>;
/// Returns the result of a call with AttendOptions::documents, whose operands are checked: `attend_packed` of the rows
/// one after another, as one row without the option. Copies no operand whose rows lie at equal distances.
Attended attend_documents(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                          AttendOptions options, const AttendFunction& attend_packed);
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
  kernels::PositionMap keys;        // of all keys, also if ranks share them
  kernels::AttentionScores scores;  // without the views of operands
  bool dq_over_out = false;

  /// Returns `scores` with the views of these operands.
  kernels::AttentionScores scores_of(const AttendOperands& x) const;
};

AttendOperands prepare_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);
/// (B, 1, 1, Nk): -infinity for padding, 0 for other keys; undefined without padding.
Tensor padding_bias(const Tensor& padding, DType dtype);
/// Prepares a call, except its passes, for whole sequences of `queries` and `keys`. With dropout, takes a range of the
/// generator.
AttendCall prepare_call(std::int64_t width, std::int64_t queries, std::int64_t keys, const Pattern& pattern,
                        const AttendOptions& options);
/// Returns the results of attend() with every score in memory; differentiable any number of times.
Attended attend_by_definition(const AttendOperands& x, const AttendCall& call);

/// x itself, or a copy with stride 1 in the last dimension.
Tensor with_unit_rows(const Tensor& x);

/// Throws ValueError if the result may not be written over q.
void check_out_over_q(const AttendCall& call, const AttendOperands& x, bool wants_gradient);

/// Returns the gradients of q, k, v, bias and sinks by the fused kernels; undefined if `backward` does not need them.
Gradients attend_gradients(const AttendCall& call, const AttendOperands& x, Tensor out, const Tensor& lse,
                           const BackwardCall& backward);

/// Returns (Hq): the gradient of the sinks, summed over these queries.
Tensor sinks_gradient(const Tensor& sinks, const Tensor& lse, const Tensor& delta);

/// Returns the gradient of a broadcast bias, summed over the broadcast dimensions. Only a few rows exist at the full
/// shape at a time.
Tensor broadcast_bias_gradient(const AttendCall& call, const AttendOperands& x, const Tensor& lse, const Tensor& delta,
                               const Tensor& grad_out);

}  // namespace poolgrad::attention
