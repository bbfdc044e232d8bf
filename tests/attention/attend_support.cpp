#include "tests/attention/attend_support.h"

#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/functors/attention_dropout.h"
#include "tensor/compare.h"
#include "tests/attention/oracle_rounding.h"

namespace poolgrad::attention::testing_support {

namespace {

/// m at all pairs of a problem, so that the definition is called once for each.
oracle::Multiplicity tabulated(const oracle::Multiplicity& m, const oracle::Problem& p) {
  std::vector<std::int64_t> table;
  for (std::int64_t h = 0; h < p.heads(); ++h)
    for (std::int64_t i = 0; i < p.queries(); ++i)
      for (std::int64_t j = 0; j < p.keys(); ++j) table.push_back(m(h, p.heads(), i + p.q_offset, p.key_position(j)));
  return [=, table = std::move(table), queries = p.queries(), keys = p.keys(), q_offset = p.q_offset,
          gap_begin = p.gap_begin, gap = p.gap](std::int64_t h, auto, std::int64_t i, std::int64_t j) {
    const std::int64_t key = j < gap_begin ? j : j - gap;
    return table[static_cast<std::size_t>((h * queries + i - q_offset) * keys + key)];
  };
}

oracle::Array array_or_none(const Tensor& x) { return x.defined() ? oracle::Array(x) : oracle::Array(); }

oracle::Problem problem_of(const Call& call, const oracle::Multiplicity& m) {
  const AttendOptions& options = call.options;
  oracle::Problem p;
  p.q = oracle::Array(call.q);
  p.k = oracle::Array(call.k);
  p.v = oracle::Array(call.v);
  p.gap_begin = options.key_positions.gap_begin;
  p.gap = options.key_positions.gap;
  p.q_offset = options.alignment == Alignment::bottom_right ? p.keys() + p.gap - p.queries() : 0;
  p.m = tabulated(m, p);
  p.scale = options.scale.value_or(1.0 / std::sqrt(std::max(1.0, static_cast<double>(call.q.size(3)))));
  p.softcap = options.softcap.value_or(0.0);
  p.bias = array_or_none(options.bias);
  if (options.key_padding.defined())
    p.padding = oracle::Array(reshape(to(options.key_padding, DType::f64), {p.batch(), 1, 1, p.keys()}));
  p.alibi = array_or_none(options.alibi);
  p.sinks = array_or_none(options.sinks);
  p.dropout = options.dropout;
  if (options.dropout > 0) {
    Generator generator = *options.generator;  // a copy: attend() takes the same range
    const auto dropout = kernels::AttentionDropout::make(generator.take(1), options.dropout);
    p.keeps = [dropout, first = options.first_batch](std::int64_t b, auto... at) {
      return dropout.keeps(first + b, at...);
    };
  }
  return p;
}

oracle::Array gradient_of_out(const Call& call, const oracle::Problem& p) {
  if (call.grad_out.defined()) return oracle::Array(call.grad_out);
  return oracle::Array(p.batch(), p.queries(), p.heads(), p.v.shape[3]);
}

Tensor with_shape(const oracle::Array& x, const Tensor& like) {
  return like.defined() ? x.tensor(like.shape()) : Tensor();
}

double largest(const Tensor& x) {
  double found = 1.0;
  for (const double value : x.to_vector<double>())
    if (std::isfinite(value)) found = std::max(found, std::abs(value));
  return found;
}

}  // namespace

std::string to_string(const Sizes& s) {
  return "batch " + std::to_string(s.batch) + ", queries " + std::to_string(s.queries) + ", keys " +
         std::to_string(s.keys) + ", heads " + std::to_string(s.heads) + ":" + std::to_string(s.kv_heads) + ", width " +
         std::to_string(s.width) + ":" + std::to_string(s.value_width);
}

Tensor normal(const Shape& shape, std::uint64_t seed, DType dtype) {
  Generator generator(seed);
  return randn(shape, {.dtype = dtype}, generator);
}

Call make_call(const Sizes& s, DType dtype, std::uint64_t seed) {
  Generator generator(seed);
  const TensorOptions options{.dtype = dtype}, compute{.dtype = compute_dtype(dtype)};
  Call call;
  call.q = randn({s.batch, s.queries, s.heads, s.width}, options, generator);
  call.k = randn({s.batch, s.keys, s.kv_heads, s.width}, options, generator);
  call.v = randn({s.batch, s.keys, s.kv_heads, s.value_width}, options, generator);
  call.grad_out = randn({s.batch, s.queries, s.heads, s.value_width}, options, generator);
  call.grad_lse = randn({s.batch, s.heads, s.queries}, compute, generator);
  return call;
}

Call rounded(const Call& call, DType dtype) {
  const auto cast = [](const Tensor& x, DType type) { return x.defined() ? to(x, type) : x; };
  Call result = call;
  for (Tensor* x : {&result.q, &result.k, &result.v, &result.grad_out}) *x = cast(*x, dtype);
  for (Tensor* x : {&result.grad_lse, &result.options.bias, &result.options.alibi, &result.options.sinks})
    *x = cast(*x, compute_dtype(dtype));
  return result;
}

std::vector<std::pair<std::string, Tensor>> parts(const Outcome& o) {
  return {{"out", o.out}, {"lse", o.lse},     {"dq", o.dq},        {"dk", o.dk},
          {"dv", o.dv},   {"dbias", o.dbias}, {"dsinks", o.dsinks}};
}

Outcome outcome_of(const Call& call, const Attend& function) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : {call.q, call.k, call.v, call.options.bias, call.options.sinks})
    leaves.push_back(x.defined() ? x.detach().set_requires_grad() : x);
  AttendOptions options = call.options;
  options.bias = leaves[3];
  options.sinks = leaves[4];
  const Attended result = function(leaves[0], leaves[1], leaves[2], options);
  std::vector<Tensor> outputs, gradients;
  if (call.grad_out.defined()) {
    outputs.push_back(result.out);
    gradients.push_back(call.grad_out);
  }
  if (call.grad_lse.defined()) {
    // A query without keys has no finite lse; its gradient must not matter.
    outputs.push_back(result.lse);
    gradients.push_back(call.grad_lse);
  }
  backward(outputs, gradients);
  const auto gradient = [&](std::size_t i) { return leaves[i].defined() ? leaves[i].grad() : Tensor(); };
  return {result.out.detach(), result.lse.detach(), gradient(0), gradient(1), gradient(2), gradient(3), gradient(4)};
}

Outcome attended(const Call& call, const Pattern& pattern) {
  return outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
    return attend(q, k, v, pattern, options);
  });
}

Outcome attended(const Call& call, const Pattern& pattern, Device device) {
  return outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& given) {
    AttendOptions options = given;
    for (Tensor* x : {&options.bias, &options.alibi, &options.sinks, &options.key_padding})
      if (x->defined()) *x = to(*x, device);
    const auto [out, lse] = attend(to(q, device), to(k, device), to(v, device), pattern, options);
    if (out.device() != device) throw DeviceError("results are on " + poolgrad::to_string(out.device()));
    return Attended{to(out, cpu), to(lse, cpu)};
  });
}

Outcome defined(const Call& call, const oracle::Multiplicity& m) {
  const oracle::Problem p = problem_of(call, m);
  const oracle::Result result = oracle::attend(p);
  const oracle::Gradients g = oracle::gradients(p, gradient_of_out(call, p), array_or_none(call.grad_lse));
  return {result.out.tensor({p.batch(), p.queries(), p.heads(), p.v.shape[3]}),
          result.lse.tensor({p.batch(), p.heads(), p.queries()}),
          with_shape(g.q, call.q),
          with_shape(g.k, call.k),
          with_shape(g.v, call.v),
          with_shape(g.bias, call.options.bias),
          with_shape(g.sinks, call.options.sinks)};
}

Outcome rounding_of(const Call& call, const oracle::Multiplicity& m, DType dtype) {
  const oracle::Problem p = problem_of(call, m);
  const oracle::Rounding error = oracle::rounding(p, gradient_of_out(call, p), array_or_none(call.grad_lse),
                                                  dtype == DType::f16 ? 0x1p-14 : 0x1p-126);
  return {error.out.tensor({p.batch(), p.queries(), p.heads(), p.v.shape[3]}),
          {},
          with_shape(error.of.q, call.q),
          with_shape(error.of.k, call.k),
          with_shape(error.of.v, call.v),
          with_shape(error.of.bias, call.options.bias),
          with_shape(error.of.sinks, call.options.sinks)};
}

std::string difference(const Outcome& got, const Outcome& want, double tolerance) {
  return difference(got, want, tolerance, {}, 0.0);
}

std::string difference(const Outcome& got, const Outcome& want, double tolerance, const Outcome& rounding,
                       double unit) {
  std::string text;
  const auto left = parts(got), right = parts(want), errors = parts(rounding);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto& [name, x] = left[i];
    const Tensor& y = right[i].second;
    if (!x.defined() && !y.defined()) continue;
    if (!x.defined() || !y.defined() || x.shape() != y.shape()) {
      text += name + " has another shape; ";
      continue;
    }
    const auto a = x.to_vector<double>(), b = y.to_vector<double>();
    const Tensor& error = errors[i].second;
    const auto off = error.defined() ? error.to_vector<double>() : std::vector<double>(a.size());
    const double of_all = tolerance * largest(y);
    for (std::size_t n = 0; n < a.size(); ++n) {
      const double bound = of_all + unit * off[n];
      const bool close = std::isinf(a[n]) || std::isinf(b[n]) ? a[n] == b[n] : std::abs(a[n] - b[n]) <= bound;
      if (close) continue;
      text += name + "[" + std::to_string(n) + "] is " + std::to_string(a[n]) + ", not " + std::to_string(b[n]) +
              " (off by " + std::to_string(std::abs(a[n] - b[n]) / bound) + " tolerances); ";
      break;
    }
  }
  return text;
}

}  // namespace poolgrad::attention::testing_support
