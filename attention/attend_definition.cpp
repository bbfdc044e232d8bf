// attend() by its definition, with every score in memory, for second derivatives.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "attention/attend_call.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators.h"
#include "kernels/functors/attention_dropout.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

namespace {

/// Returns a constant tensor with value(h, i, j) for every head and pair of indices, in the compute dtype.
template <class Value>
Tensor tabulated(const Shape& shape, const TensorOptions& options, const Value& value) {
  std::vector<double> table;
  table.reserve(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i)
        for (std::int64_t j = 0; j < shape[3]; ++j) table.push_back(value(b, h, i, j));
  return to(to(from_data(table, shape), options.dtype), options.device);
}

/// (B, N, Hkv, D) -> (B, Hkv * group, N, D): every key head once per query head that uses it.
Tensor repeated_for_queries(const Tensor& x, std::int64_t group) {
  const std::int64_t batch = x.size(0), length = x.size(1), heads = x.size(2), width = x.size(3);
  const Tensor repeated = expand(unsqueeze(permute(x, {0, 2, 1, 3}), 2), {batch, heads, group, length, width});
  return reshape(repeated, {batch, heads * group, length, width});
}

/// Returns whether no element is true. Returns false for a GPU, to avoid waiting for it, and true for sim, which makes
/// the allocations of a CPU.
bool is_known_false(const Tensor& mask) {
  if (mask.device().is_cuda()) return false;
  const Tensor found = any(mask);
  return mask.device().is_sim() || found.item() == 0.0;
}

/// The mask of visible pairs, and the two products over them. A hidden pair must not affect a row or any derivative. A
/// product with 0 does not suffice: 0 times NaN or infinity is NaN.
class Pairs {
 public:
  /// `hidden`: (B or 1, H, N, M), true for a hidden pair.
  Pairs(const Tensor& hidden, const TensorOptions& options)
      : Pairs(hidden, masked_fill(ones(hidden.shape(), options), hidden, 0.0)) {}

  /// Returns a_i b_j for visible pairs and 0 for hidden ones: (B, H, N, D), (B, H, M, D) -> (B, H, N, M).
  Tensor products(const Tensor& a, const Tensor& b) const {
    Tensor out;
    {
      const NoGradGuard no_grad;
      out = masked_fill(matmul(a, transpose(b, 2, 3)), hidden_, 0.0);
    }
    if (wants_gradient({a, b}))
      record("products of pairs", {a, b}, {out},
             [saved = Saved(*this), a = SavedTensor(a), b = SavedTensor(b)](const BackwardCall& call) -> Gradients {
               const Tensor grad = call.gradient();
               const Pairs pairs = saved.unpack();
               return {call.needs(0) ? pairs.sums(grad, b.unpack()) : Tensor(),
                       call.needs(1) ? pairs.swapped().sums(transpose(grad, 2, 3), a.unpack()) : Tensor()};
             });
    return out;
  }
  /// Returns the sum of w_ij x_j over visible pairs: (B, H, N, M), (B, H, M, D) -> (B, H, N, D). NaN for a row that
  /// sees a value that is not finite.
  Tensor sums(const Tensor& w, const Tensor& x) const {
    Tensor out;
    {
      const NoGradGuard no_grad;
      const Tensor bad = logical_not(isfinite(x)), counting = masked_fill(w, hidden_, 0.0);
      if (is_known_false(bad)) {
        out = matmul(counting, x);
      } else {
        const Tensor seen = matmul(counted_, to(bad, counted_.dtype()));
        out = masked_fill(matmul(counting, masked_fill(x, bad, 0.0)), greater(seen, zeros_like(seen)),
                          std::numeric_limits<double>::quiet_NaN());
      }
    }
    if (wants_gradient({w, x}))
      record("sums over pairs", {w, x}, {out},
             [saved = Saved(*this), w = SavedTensor(w), x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
               const Tensor grad = call.gradient();
               const Pairs pairs = saved.unpack();
               return {call.needs(0) ? pairs.products(grad, x.unpack()) : Tensor(),
                       call.needs(1) ? pairs.swapped().sums(transpose(w.unpack(), 2, 3), grad) : Tensor()};
             });
    return out;
  }

 private:
  struct Saved {
    explicit Saved(const Pairs& pairs) : hidden(pairs.hidden_), counted(pairs.counted_) {}
    Pairs unpack() const { return {hidden.unpack(), counted.unpack()}; }
    SavedTensor hidden, counted;
  };
  Pairs(const Tensor& hidden, const Tensor& counted) : hidden_(hidden), counted_(counted) {}
  /// Returns the mask with keys and queries swapped.
  Pairs swapped() const { return {transpose(hidden_, 2, 3), transpose(counted_, 2, 3)}; }

  Tensor hidden_, counted_;
};

}  // namespace

Attended attend_by_definition(const AttendOperands& x, const AttendCall& call) {
  const AutocastScope as_is(autocast_off);  // the operands have been cast, so all have one dtype
  const DType compute = compute_dtype(x.q.dtype());
  const TensorOptions options{compute, x.q.device()};
  const std::int64_t batch = x.batch(), heads = x.heads(), queries = x.queries(), keys = x.keys();
  const std::int64_t group = heads / x.k.size(2);

  const Tensor lowest = full({}, -std::numeric_limits<double>::infinity(), options);
  // A pair with multiplicity m is one pair with log m added; log 0 = -infinity.
  const Tensor log_multiplicity = tabulated({1, heads, queries, keys}, options, [&](auto, auto h, auto i, auto j) {
    return std::log(static_cast<double>(call.pattern.multiplicity(h, heads, i + call.q_offset, call.keys.position(j))));
  });
  Tensor hidden = equal(log_multiplicity, lowest);
  if (x.bias.defined()) hidden = logical_or(hidden, equal(x.bias.detach(), lowest));
  const Pairs pairs(hidden, options);
  const Tensor q = permute(to(x.q, compute), {0, 2, 1, 3}), k = repeated_for_queries(to(x.k, compute), group),
               v = repeated_for_queries(to(x.v, compute), group);

  Tensor scores = pairs.products(q, k) * call.scores.scale;
  if (call.scores.softcap > 0.0) scores = call.scores.softcap * tanh(scores / call.scores.softcap);
  if (x.bias.defined()) scores = scores + x.bias;
  if (x.alibi.defined()) {
    const Tensor distance = tabulated({1, 1, queries, keys}, options, [&](auto, auto, auto i, auto j) {
      return static_cast<double>(std::abs(i + call.q_offset - call.keys.position(j)));
    });
    scores = scores - reshape(x.alibi, {1, heads, 1, 1}) * distance;
  }
  scores = masked_fill(scores + log_multiplicity, hidden, -std::numeric_limits<double>::infinity());
  if (x.sinks.defined())
    scores = cat({scores, expand(reshape(x.sinks, {1, heads, 1, 1}), {batch, heads, queries, 1})}, 3);

  Tensor weights = slice(softmax(scores, -1), 3, 0, keys);
  if (call.scores.dropout > 0.0) {
    const auto dropout = kernels::AttentionDropout::make(call.scores.dropout_key, call.scores.dropout);
    weights = weights * tabulated({batch, heads, queries, keys}, options, [&](auto b, auto h, auto i, auto j) {
                return dropout.keeps(call.scores.first_batch + b, h, i + call.q_offset, call.keys.position(j))
                           ? 1.0 / (1.0 - call.scores.dropout)
                           : 0.0;
              });
  }
  const Tensor out = permute(pairs.sums(weights, v), {0, 2, 1, 3});
  return {to(out, x.q.dtype()), logsumexp(scores, -1)};
}

Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern,
                              const AttendOptions& options, CallSite) {
  if (const auto cast = autocast("attend", {q, k, v}); !cast.empty())
    return attend_by_definition(cast[0], cast[1], cast[2], pattern, options);
  check_attend(q, k, v, options);
  if (!options.documents.empty())
    return attend_documents(q, k, v, pattern, options,
                            [](const auto&... packed) { return attend_by_definition(packed...); });
  const AttendOperands x = prepare_operands(q, k, v, options);
  return attend_by_definition(x, prepare_call(x.q.size(3), x.queries(), x.keys(), pattern, options));
}

}  // namespace poolgrad::attention
