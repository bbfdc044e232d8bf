#include "autograd/recurrence.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/construct.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "kernels/attention.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

enum Input { in_q, in_k, in_v, in_beta, in_gate, in_state };

/// x (B, T, H, ...) -> (B, H, chunks, chunk, ...) in the compute dtype, with zeros after the last position.
Tensor in_chunks(const Tensor& x, std::int64_t chunk) {
  const std::int64_t chunks = (x.size(1) + chunk - 1) / chunk;
  const Tensor whole = pad(to(x, compute_dtype(x.dtype())), 1, 0, chunks * chunk - x.size(1));
  Shape shape = x.shape();
  shape[1] = chunks;
  shape.insert(2, chunk);
  return movedim(reshape(whole, shape), 3, 1);
}

/// (I + lower)^-1 for strictly lower triangular matrices (..., n, n): inverts blocks of 1, 2, 4, ... rows.
Tensor inverse_of_unit_lower(const Tensor& lower) {
  const std::int64_t n = lower.size(-1);
  const TensorOptions options = lower.options();
  const Tensor index = arange(std::int64_t{0}, n, std::int64_t{1}, options);
  Tensor inverse = diag(ones({n}, options));
  for (std::int64_t rows = 1; rows < n; rows *= 2) {
    const auto same_block = [&](std::int64_t size) {
      const Tensor block = floor(index * (1.0 / static_cast<double>(size)));
      return equal(unsqueeze(block, 1), unsqueeze(block, 0));
    };
    const Tensor between = to(logical_and(same_block(2 * rows), logical_not(same_block(rows))), lower.dtype());
    inverse = inverse - matmul(matmul(inverse, lower * between), inverse);
  }
  return inverse;
}

/// The operator by products. As in kernels/cpu/attention/delta_rule.cpp.
std::vector<Tensor> by_products(const DeltaRuleOptions& options, const std::vector<Tensor>& in) {
  const AutocastScope exact(autocast_off);
  const Tensor &q = in[in_q], &v = in[in_v];
  const TensorOptions wide{compute_dtype(q.dtype()), q.device()};
  Tensor state = in[in_state].defined() ? in[in_state] : zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, wide);
  if (q.numel() == 0 || v.numel() == 0) return {v * 0.0, state * 1.0};
  const std::int64_t chunk = std::min(options.chunk, q.size(1));
  const Tensor queries = in_chunks(q, chunk), keys = in_chunks(in[in_k], chunk), values = in_chunks(v, chunk);
  const Tensor beta = unsqueeze(in_chunks(in[in_beta], chunk), -1), gate = in_chunks(in[in_gate], chunk);
  Shape square = gate.shape();
  square.append(chunk);
  const Tensor gates = expand(unsqueeze(gate, -1), square);  // of the row, in each column
  const Tensor decay = tril(exp(cumsum(tril(gates, -1), -2)));
  const Tensor since = unsqueeze(exp(cumsum(gate, -1)), -1);
  const Tensor to_last = select(decay, -2, chunk - 1);
  const Tensor scores = tril(matmul(queries, transpose(keys, -2, -1))) * decay;
  Tensor of_values = beta * values, of_state;
  if (options.delta) {
    const Tensor lower = tril(matmul(keys, transpose(keys, -2, -1)), -1) * decay * beta;
    const Tensor inverse = inverse_of_unit_lower(lower);
    of_values = matmul(inverse, of_values);
    of_state = matmul(inverse, keys * (beta * since));
  }
  const std::vector<Tensor> first = unbind(queries * since, 2), from_values = unbind(of_values, 2),
                            from_state = options.delta ? unbind(of_state, 2) : std::vector<Tensor>(),
                            within = unbind(scores, 2), last = unbind(keys * unsqueeze(to_last, -1), 2),
                            kept = unbind(slice(since, -2, chunk - 1, chunk), 2);
  std::vector<Tensor> out;
  for (std::size_t c = 0; c < first.size(); ++c) {
    const Tensor u = options.delta ? from_values[c] - matmul(from_state[c], state) : from_values[c];
    out.push_back(matmul(first[c], state) + matmul(within[c], u));
    state = state * kept[c] + matmul(transpose(last[c], -2, -1), u);
  }
  const Tensor joined = movedim(stack(out, 2), 1, 3);  // (B, chunks, chunk, H, V)
  return {to(slice(flatten(joined, 1, 2), 1, 0, q.size(1)), q.dtype()), state};
}

bool has_kernel(const Tensor& x) { return !allocator_for(x.device()).memory().queues_work(); }

/// The operator by products, from {x, weight, before}. As in kernels/cpu/attention/short_convolution.cpp.
Tensor sum_of_taps(const std::vector<Tensor>& in) {
  const AutocastScope exact(autocast_off);
  const Tensor &x = in[0], &weight = in[1], &before = in[2];
  const std::int64_t taps = weight.size(1);
  const Tensor whole = before.defined() ? cat({before, x}, 1) : pad(x, 1, taps - 1, 0);
  const Tensor rows = contiguous(transpose(weight, 0, 1));  // a tap of all channels lies together
  Tensor out;
  for (std::int64_t i = 0; i < taps; ++i) {
    const Tensor term = slice(whole, 1, i, i + x.size(1)) * select(rows, 0, i);
    out = i == 0 ? term : out + term;
  }
  return out;
}

Tensor convolved(const std::vector<Tensor>& in) {
  const NoGradGuard no_grad;
  if (!has_kernel(in[0])) return dense(sum_of_taps(in));
  Tensor out = Tensor::empty(in[0].shape(), in[0].options());
  const Tensor x = dense(in[0]), weight = dense(in[1]), before = in[2].defined() ? dense(in[2]) : Tensor();
  kernels::short_convolution(current_stream(x.device()), x.view(), weight.view(), view_or_none(before), out.view());
  return out;
}

Gradients gradients_of_convolution(const std::vector<Tensor>& in, const BackwardCall& call) {
  if (grad_enabled() || !has_kernel(in[0]))
    return differentiable_gradients(
        [](const std::vector<Tensor>& seen) -> std::vector<Tensor> { return {sum_of_taps(seen)}; }, in,
        {call.gradient()});
  Gradients gradients(in.size());
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i].defined() && call.needs(i)) gradients[i] = Tensor::empty(in[i].shape(), in[i].options());
  const Tensor x = dense(in[0]), weight = dense(in[1]), before = in[2].defined() ? dense(in[2]) : Tensor(),
               grad = dense(call.gradient());
  kernels::short_convolution_backward(current_stream(x.device()), x.view(), weight.view(), view_or_none(before),
                                      grad.view(), view_or_none(gradients[0]), view_or_none(gradients[1]),
                                      view_or_none(gradients[2]));
  return gradients;
}

/// x itself if its last dimension has stride 1, else a copy.
Tensor with_dense_rows(const Tensor& x) { return x.size(-1) <= 1 || x.strides().back() == 1 ? x : x.copy(); }

/// The operands as the kernel takes them, with the copies that it needs.
struct KernelOperands {
  KernelOperands(const DeltaRuleOptions& options, const std::vector<Tensor>& in)
      : rows{with_dense_rows(in[in_q]), with_dense_rows(in[in_k]), with_dense_rows(in[in_v])},
        state(in[in_state].defined() ? dense(in[in_state]) : Tensor()),
        rule{.q = rows[0].view(),
             .k = rows[1].view(),
             .v = rows[2].view(),
             .beta = in[in_beta].view(),
             .gate = in[in_gate].view(),
             .state = view_or_none(state),
             .delta = options.delta,
             .chunk = options.chunk} {}

  Tensor rows[3], state;
  kernels::DeltaRule rule;
};

std::vector<Tensor> computed(const DeltaRuleOptions& options, const std::vector<Tensor>& in) {
  const NoGradGuard no_grad;
  const Tensor &q = in[in_q], &v = in[in_v];
  if (!has_kernel(q)) {
    std::vector<Tensor> results = by_products(options, in);
    for (Tensor& result : results) result = dense(result);
    return results;
  }
  Tensor out = Tensor::empty(v.shape(), v.options());
  Tensor last = Tensor::empty({q.size(0), q.size(2), q.size(3), v.size(3)}, {compute_dtype(q.dtype()), q.device()});
  const KernelOperands operands(options, in);
  kernels::delta_rule(current_stream(q.device()), operands.rule, out.view(), last.view());
  return {out, last};
}

Gradients gradients_of(const DeltaRuleOptions& options, const std::vector<Tensor>& in, const BackwardCall& call) {
  if (grad_enabled() || !has_kernel(in[in_q]))
    return differentiable_gradients([&](const std::vector<Tensor>& seen) { return by_products(options, seen); }, in,
                                    {call.gradient(0), call.gradient(1)});
  Gradients gradients(in.size());
  for (std::size_t i = 0; i < in.size(); ++i)
    if (i != in_state || (in[i].defined() && call.needs(in_state))) gradients[i] = Tensor::empty_like(in[i]);
  const Tensor grad_out = call.gradient(0).defined() ? with_dense_rows(call.gradient(0)) : Tensor(),
               grad_last = call.gradient(1).defined() ? dense(call.gradient(1)) : Tensor();
  const KernelOperands operands(options, in);
  kernels::delta_rule_backward(current_stream(in[in_q].device()), operands.rule, view_or_none(grad_out),
                               view_or_none(grad_last),
                               {.dq = gradients[in_q].view(),
                                .dk = gradients[in_k].view(),
                                .dv = gradients[in_v].view(),
                                .dbeta = gradients[in_beta].view(),
                                .dgate = gradients[in_gate].view(),
                                .dstate = view_or_none(gradients[in_state])});
  return gradients;
}

void check_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, const Tensor& gate,
                      const Tensor& state, const DeltaRuleOptions& options) {
  constexpr const char* op = "gated_delta_rule";
  const Tensor& last = state.defined() ? state : gate;
  const Operands operands{{"q", q}, {"k", k}, {"v", v}, {"beta", beta}, {"gate", gate}, {"state", state}};
  check_floating(op, {{"q", q}, {"k", k}, {"v", v}});
  check_devices(op, {{"q", q}, {"beta", beta}, {"gate", gate}, {"state", last}});
  if (q.dim() != 4 || k.shape() != q.shape() || v.dim() != 4 || row_shape(v) != row_shape(q))
    fail<ShapeError>(op, "needs q and k (B, T, H, K) and v (B, T, H, V)", operands);
  if (beta.shape() != row_shape(q) || gate.shape() != row_shape(q))
    fail<ShapeError>(op, "needs beta and gate (B, T, H)", operands);
  if (state.defined() && state.shape() != Shape{q.size(0), q.size(2), q.size(3), v.size(3)})
    fail<ShapeError>(op, "needs a state (B, H, K, V)", operands);
  for (const Tensor& number : {beta, gate, last})
    check_dtype(op, number, compute_dtype(q.dtype()), "needs beta, gate and state in the compute dtype of q", operands);
  if (options.chunk < 1) fail<ValueError>(op, "a chunk has less than one position", operands);
}

}  // namespace

RecurrentResult gated_delta_rule(TensorArg q, const Tensor& k, const Tensor& v, const Tensor& beta, const Tensor& gate,
                                 const Tensor& state, const DeltaRuleOptions& options) {
  if (const auto cast = autocast("gated_delta_rule", {q, k, v}); !cast.empty())
    return gated_delta_rule(cast[0], cast[1], cast[2], beta, gate, state, options);
  check_delta_rule(q, k, v, beta, gate, state, options);
  const std::vector<Tensor> in{q, k, v, beta, gate, state};
  const std::vector<Tensor> results = computed(options, in);
  if (wants_gradient(in)) {
    std::vector<SavedTensor> saved(in.begin(), in.end());
    record("gated_delta_rule", in, results,
           recipe([options](const std::vector<Tensor>& operands) { return computed(options, operands); },
                  flops(results[0], 3 * q->size(3) + 2 * options.chunk)),
           [options, saved = std::move(saved)](const BackwardCall& call) -> Gradients {
             std::vector<Tensor> operands;
             for (const SavedTensor& one : saved) operands.push_back(one.unpack());
             return gradients_of(options, operands, call);
           });
  }
  return {results[0], results[1]};
}

Tensor short_convolution(TensorArg x, const Tensor& weight, const Tensor& before) {
  if (const auto cast = autocast("short_convolution", {x, weight, before}); !cast.empty())
    return short_convolution(cast[0], cast[1], cast[2]);
  constexpr const char* op = "short_convolution";
  const Operands operands{{"x", x}, {"weight", weight}, {"before", before}};
  check_floating(op, {{"x", x}, {"weight", weight}, {"before", before.defined() ? before : *x}});
  if (x->dim() != 3 || weight.dim() != 2 || weight.size(0) != x->size(2) || weight.size(1) < 1)
    fail<ShapeError>(op, "needs x (B, T, C) and weight (C, N)", operands);
  const std::int64_t taps = weight.size(1);
  if (before.defined() && before.shape() != Shape{x->size(0), taps - 1, x->size(2)})
    fail<ShapeError>(op, "needs the N - 1 inputs before x (B, N - 1, C)", operands);
  const std::vector<Tensor> in{x, weight, before};
  Tensor out = convolved(in);
  if (wants_gradient(in)) {
    std::vector<SavedTensor> saved(in.begin(), in.end());
    record("short_convolution", in, {out}, recipe(convolved, flops(out, taps)),
           [saved = std::move(saved)](const BackwardCall& call) -> Gradients {
             std::vector<Tensor> unpacked;
             for (const SavedTensor& one : saved) unpacked.push_back(one.unpack());
             return gradients_of_convolution(unpacked, call);
           });
  }
  return out;
}

}  // namespace poolgrad
