#include "autograd/operators/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/rows.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using kernels::ReduceOp;

/// The shapes after reducing `dims` of x: with reduced dimensions as 1, and without them.
struct ReducedDims {
  Shape kept, dropped;
  std::int64_t elements = 1;  // reduced to one

  ReducedDims(const char* name, const Tensor& x, const Dims& dims) : kept(x.shape()) {
    const std::bitset<max_rank> reduced = named_dims(name, x, dims);
    for (int d = 0; d < x.dim(); ++d) {
      if (!dims.empty() && !reduced[static_cast<std::size_t>(d)]) {
        dropped.append(x.shape()[d]);
        continue;
      }
      elements *= x.shape()[d];
      kept[d] = 1;
    }
  }
};

Tensor computed(ReduceOp op, const Tensor& x, const ReducedDims& reduction, bool keep, DType dtype,
                std::source_location at = std::source_location::current()) {
  Tensor out = Tensor::empty(keep ? reduction.kept : reduction.dropped, {dtype, x.device()}, at);
  kernels::reduce(current_stream(x.device()), op, out.alias(contiguous_geometry(reduction.kept)).view(), x.view());
  return out;
}

/// Integers and bools sum to i64.
DType sum_dtype(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }

/// Returns the share of each element of x in the gradient of its extremum `best` (kept). Elements equal to the result
/// share it equally. A constant for second derivatives, in the compute dtype of x.
Tensor shares_of_extremum(ReduceOp op, const Tensor& x, const Tensor& best, const ReducedDims& reduction) {
  const NoGradGuard guard;
  const auto share = op == ReduceOp::maximum ? kernels::BinaryOp::maximum_share : kernels::BinaryOp::minimum_share;
  Tensor winners = Tensor::empty_like(x);  // 1/2 each
  kernels::binary(current_stream(x.device()), share, winners.view(), x.view(), broadcast_view(best, x.shape()));
  const Tensor sums = computed(ReduceOp::sum, winners, reduction, true, compute_dtype(x.dtype()));
  return winners * to(1.0 / sums, x.dtype());
}

/// Records max or min. The elements equal to the result get the gradient in equal parts.
Tensor record_extremum(const char* name, ReduceOp op, const Tensor& x, const Dims& dims, bool keep,
                       std::source_location at = std::source_location::current()) {
  check_devices(name, {{"x", x}});
  const ReducedDims reduction(name, x, dims);
  if (reduction.elements == 0) fail<ShapeError>(name, "there are no elements to choose from", {{"x", x}});
  Tensor out = computed(op, x, reduction, keep, x.dtype(), at);
  if (wants_gradient({x}))
    record(name, {x}, {out}, recipe([name, op, dims, keep](const Tensor& input) {
             return computed(op, input, ReducedDims(name, input, dims), keep, input.dtype());
           }),
           [x = SavedTensor(x), out = SavedTensor::output(out), op, reduction](const BackwardCall& call) -> Gradients {
             const Tensor best = reshape(out.unpack().detach(), reduction.kept);
             return {reshape(call.gradient(), reduction.kept) *
                     shares_of_extremum(op, x.unpack().detach(), best, reduction)};
           });
  return out;
}

/// Returns the product over the last dimension as a tree of products of halves. Derivatives are exact even where
/// factors are 0.
Tensor product_tree(Tensor x) {
  for (std::int64_t n = x.shape().back(); n > 1; n = x.shape().back()) {
    const Tensor halves = slice(x, -1, 0, n / 2) * slice(x, -1, n / 2, n / 2 * 2);
    x = n % 2 ? cat({halves, slice(x, -1, n - 1)}, -1) : halves;
  }
  return x;
}

/// Returns prod over `dims`, kept as 1, in differentiable operators. x must not be empty.
Tensor product_of(const Tensor& x, const ReducedDims& reduction) {
  Dims order;
  for (const bool combined : {false, true})
    for (int d = 0; d < x.dim(); ++d)
      if ((reduction.kept[d] != x.shape()[d]) == combined) order.append(d);
  return reshape(product_tree(reshape(permute(x, order), {-1, reduction.elements})), reduction.kept);
}

/// Returns the running sum along the last dimension, from the front or from the back. Each is the gradient of the
/// other.
Tensor running_sum(const Tensor& x, bool reverse) {
  Tensor out = Tensor::empty(x.shape(), {sum_dtype(x.dtype()), x.device()});
  kernels::cumulative_sum(current_stream(x.device()), out.view(), dense(x).view(), reverse);
  if (wants_gradient({x}))
    record("cumsum", {x}, {out}, recipe([reverse](const Tensor& input) { return running_sum(input, reverse); }),
           [reverse](const BackwardCall& call) -> Gradients { return {running_sum(call.gradient(), !reverse)}; });
  return out;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Returns the largest finite number of a floating dtype.
double largest_number(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::max();
    case DType::f16: return 65504.0;
    case DType::bf16: return 0x1.fep127;
    default: return static_cast<double>(std::numeric_limits<float>::max());
  }
}

/// Combines every element with all before it along the last dimension, in log2(n) passes of differentiable operators
/// (Hillis & Steele 1986). Derivatives are exact even where factors are 0 or numbers differ widely. Half types compute
/// in f32.
template <class Combine>
Tensor prefixes_of(const Tensor& x, const Combine& combine) {
  const DType dtype = sum_dtype(x.dtype()), wide = is_half(dtype) ? DType::f32 : dtype;
  const std::int64_t n = x.shape().back();
  Tensor out = n < 2 || x.numel() == 0 ? clone(x) : reshape(x, {x.numel() / n, n});
  if (out.dtype() != wide) out = to(out, wide);
  for (std::int64_t step = 1; step < n && x.numel() > 0; step *= 2)
    out = cat({slice(out, -1, 0, step), combine(slice(out, -1, 0, n - step), slice(out, -1, step))}, -1);
  return reshape(dtype == wide ? out : to(out, dtype), x.shape());
}
Tensor running_product(const Tensor& x) { return prefixes_of(x, mul_with_no_nan_gradients); }
Tensor running_log_sum_exp(const Tensor& x) {
  const Tensor out = prefixes_of(x, [](const Tensor& before, const Tensor& own) {
    return logsumexp(stack({before, own}, -1), -1);
  });
  if (!out.requires_grad()) return out;
  return masked_fill(out, out == -infinity, -infinity);  // no gradient for leading -infinity
}

/// Records an operator with forward and backward from its definition along the last dimension. Saves only x.
Tensor record_defined(const char* name, Tensor (*definition)(const Tensor&), const Tensor& x, std::int64_t dim) {
  if (x.dim() == 0) return as_vector(x, [&](const Tensor& one) { return record_defined(name, definition, one, dim); });
  const int axis = checked_axis(name, x, dim);
  if (axis != x.dim() - 1) return moved_from_end(record_defined(name, definition, moved_to_end(x, axis), -1), axis);
  const auto compute = [definition](const Tensor& input) {
    const NoGradGuard guard;
    return definition(input);
  };
  Tensor out = compute(x);
  if (wants_gradient({x}))
    record(name, {x}, {out}, recipe(compute), [definition, x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
      return differentiable_gradients(
          [definition](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {definition(in[0])}; },
          {x.unpack()}, {call.gradient()});
    });
  return out;
}

using Search = void (*)(Stream, const View&, const View&);

Tensor position_of(const char* name, Search search, const Tensor& x, std::int64_t dim, bool keep) {
  check_devices(name, {{"x", x}});
  if (x.dim() == 0) return as_vector(x, [&](const Tensor& one) { return position_of(name, search, one, dim, keep); });
  const int axis = checked_axis(name, x, dim);
  if (x.shape()[axis] == 0) fail<ShapeError>(name, "there are no elements to choose from", {{"x", x}});
  const Tensor rows = dense(moved_to_end(x.detach(), axis));
  Tensor out = Tensor::empty(row_shape(rows), {DType::i64, x.device()});
  search(current_stream(x.device()), out.view(), rows.view());
  return keep ? unsqueeze(out, axis) : out;
}

}  // namespace

Tensor sum(TensorArg x, const Dims& dims, Keep keep) {
  if (const auto cast = autocast("sum", {x}); !cast.empty()) return sum(cast[0], dims, keep);
  check_devices("sum", {{"x", x}});
  const ReducedDims reduction("sum", x, dims);
  Tensor out = computed(ReduceOp::sum, x, reduction, keep, sum_dtype(x->dtype()));
  if (wants_gradient({x}))
    record("sum", {x}, {out}, recipe([dims, keep](const Tensor& input) { return sum(input, dims, keep); }),
           [kept = reduction.kept, before = x->shape()](const BackwardCall& call) -> Gradients {
             return {expand(reshape(call.gradient(), kept), before)};
           });
  return out;
}

Tensor mean(TensorArg x, const Dims& dims, Keep keep) {
  if (const auto cast = autocast("mean", {x}); !cast.empty()) return mean(cast[0], dims, keep);
  check_floating("mean", {{"x", x}});
  const ReducedDims reduction("mean", x, dims);
  Tensor out = computed(ReduceOp::mean, x, reduction, keep, x->dtype());
  if (wants_gradient({x}))
    record("mean", {x}, {out}, recipe([dims, keep](const Tensor& input) { return mean(input, dims, keep); }),
           [kept = reduction.kept, before = x->shape(),
            scale = 1.0 / static_cast<double>(reduction.elements)](const BackwardCall& call) -> Gradients {
             return {expand(reshape(call.gradient() * scale, kept), before)};
           });
  return out;
}

Tensor var(TensorArg x, const Dims& dims, Keep keep, double correction) {
  if (const auto cast = autocast("var", {x}); !cast.empty()) return var(cast[0], dims, keep, correction);
  check_floating("var", {{"x", x}});
  if (is_half(x->dtype())) return to(var(to(*x, DType::f32), dims, keep, correction), x->dtype());
  const ReducedDims reduction("var", x, dims);
  const double scale = 1.0 / std::max(static_cast<double>(reduction.elements) - correction, 0.0);
  const auto compute = [=](const Tensor& input) {
    const NoGradGuard guard;
    return sum(square(input - mean(input, dims, true)), dims, keep) * scale;
  };
  Tensor out = compute(x);
  if (wants_gradient({x}))
    record("var", {x}, {out}, recipe(compute),
           [x = SavedTensor(x), dims, reduction, scale](const BackwardCall& call) -> Gradients {
             const Tensor input = x.unpack();
             const Tensor weight = reshape(call.gradient(), reduction.kept) * (2.0 * scale);
             return {mul_no_nan(weight, input - mean(input, dims, true))};
           });
  return out;
}

Tensor stddev(TensorArg x, const Dims& dims, Keep keep, double correction) {
  if (const auto cast = autocast("stddev", {x}); !cast.empty()) return stddev(cast[0], dims, keep, correction);
  check_floating("stddev", {{"x", x}});
  if (is_half(x->dtype())) return to(stddev(to(*x, DType::f32), dims, keep, correction), x->dtype());
  const auto elements = static_cast<double>(ReducedDims("stddev", x, dims).elements);
  // By the norm, which squares without overflow or underflow.
  return norm(*x - mean(*x, dims, true), 2.0, dims, keep) * (1.0 / std::sqrt(std::max(elements - correction, 0.0)));
}

Tensor prod(TensorArg x, const Dims& dims, Keep keep) {
  if (const auto cast = autocast("prod", {x}); !cast.empty()) return prod(cast[0], dims, keep);
  check_devices("prod", {{"x", x}});
  const ReducedDims reduction("prod", x, dims);
  Tensor out = computed(ReduceOp::product, x, reduction, keep, sum_dtype(x->dtype()));
  if (wants_gradient({x}))
    record("prod", {x}, {out}, recipe([dims, keep](const Tensor& input) { return prod(input, dims, keep); }),
           [x = SavedTensor(x), reduction](const BackwardCall& call) -> Gradients {
             const DType dtype = call.gradient().dtype(), wide = compute_dtype(dtype);
             Tensor input = to(x.unpack(), wide);
             if (input.numel() == 0) return {zeros_like(x.unpack())};
             if (!input.requires_grad()) input.set_requires_grad();
             const Tensor others = differentiable_gradients(
                 [&](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {product_of(in[0], reduction)}; },
                 {input}, {ones(reduction.kept, input.options())})[0];
             return {to(mul_no_nan(to(reshape(call.gradient(), reduction.kept), wide), others), dtype)};
           });
  return out;
}

Tensor max(TensorArg x, const Dims& dims, Keep keep) {
  return record_extremum("max", ReduceOp::maximum, x, dims, keep);
}
Tensor min(TensorArg x, const Dims& dims, Keep keep) {
  return record_extremum("min", ReduceOp::minimum, x, dims, keep);
}

Tensor any(TensorArg x, const Dims& dims, Keep keep) {
  check_devices("any", {{"x", x}});
  return computed(ReduceOp::any, x, ReducedDims("any", x, dims), keep, DType::boolean);
}
Tensor all(TensorArg x, const Dims& dims, Keep keep) {
  check_devices("all", {{"x", x}});
  return computed(ReduceOp::all, x, ReducedDims("all", x, dims), keep, DType::boolean);
}
Tensor argmax(TensorArg x, std::int64_t dim, Keep keep) { return position_of("argmax", kernels::argmax, x, dim, keep); }
Tensor argmin(TensorArg x, std::int64_t dim, Keep keep) { return position_of("argmin", kernels::argmin, x, dim, keep); }
Tensor argmax(TensorArg x) { return argmax(reshape(*x, {-1}), 0); }
Tensor argmin(TensorArg x) { return argmin(reshape(*x, {-1}), 0); }

Tensor logsumexp(TensorArg x, std::int64_t dim, Keep keep) {
  if (const auto cast = autocast("logsumexp", {x}); !cast.empty()) return logsumexp(cast[0], dim, keep);
  check_floating("logsumexp", {{"x", x}});
  if (x->dim() == 0) return as_vector(x, [&](const Tensor& one) { return logsumexp(one, dim); });
  const int axis = checked_axis("logsumexp", x, dim);
  if (axis != x->dim() - 1 || keep) {
    const Tensor rows = logsumexp(moved_to_end(x, axis), -1);
    return keep ? unsqueeze(rows, axis) : rows;
  }
  Tensor out = Tensor::empty(row_shape(x), x->options());
  kernels::logsumexp(current_stream(x->device()), out.view(), dense(x).view());
  if (wants_gradient({x}))
    record("logsumexp", {x}, {out}, recipe([](const Tensor& input) { return logsumexp(input, -1); }),
           [x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
             // Infinity counts as the largest number, so infinite elements share the gradient as in max.
             const Tensor finite = clamp(x.unpack(), -infinity, largest_number(call.gradient().dtype()));
             return {mul_no_nan(unsqueeze(call.gradient(), -1), softmax(finite))};
           });
  return out;
}

Tensor cumsum(TensorArg x, std::int64_t dim) {
  if (const auto cast = autocast("cumsum", {x}); !cast.empty()) return cumsum(cast[0], dim);
  check_devices("cumsum", {{"x", x}});
  if (x->dim() == 0) return as_vector(x, [&](const Tensor& one) { return cumsum(one, dim); });
  const int axis = checked_axis("cumsum", x, dim);
  if (axis == x->dim() - 1) return running_sum(x, /*reverse=*/false);
  return moved_from_end(running_sum(moved_to_end(x, axis), /*reverse=*/false), axis);
}

Tensor cumprod(TensorArg x, std::int64_t dim) {
  if (const auto cast = autocast("cumprod", {x}); !cast.empty()) return cumprod(cast[0], dim);
  check_devices("cumprod", {{"x", x}});
  return record_defined("cumprod", running_product, x, dim);
}

Tensor logcumsumexp(TensorArg x, std::int64_t dim) {
  if (const auto cast = autocast("logcumsumexp", {x}); !cast.empty()) return logcumsumexp(cast[0], dim);
  check_floating("logcumsumexp", {{"x", x}});
  return record_defined("logcumsumexp", running_log_sum_exp, x, dim);
}

namespace {

/// Returns the p-norm over `dims`, which stay as 1, in x's dtype. Computes in f64, which holds the squares of all other
/// dtypes. For other powers, and for squares of f64, first divides x by about its largest magnitude.
Tensor computed_norm(const Tensor& x, double p, const Dims& dims) {
  const NoGradGuard guard;
  const ReducedDims reduction("norm", x, dims);
  const Stream stream = current_stream(x.device());
  if (reduction.elements == 0) return zeros(reduction.kept, x.options());
  if (p == infinity) return computed(ReduceOp::maximum, abs(x), reduction, true, x.dtype());
  if (p == 1.0) return to(sum(abs(to(x, compute_dtype(x.dtype()))), dims, true), x.dtype());
  if (p == 0.0) return to(sum(x != 0.0, dims, true), x.dtype());
  const auto root_of_squares = [&](const Tensor& terms) {
    if (!dims.empty()) return sqrt(sum(square(to(terms, DType::f64)), dims, true));
    const Tensor squares = zeros(reduction.kept, {DType::f64, x.device()});
    kernels::add_sum_of_squares(stream, squares.alias(contiguous_geometry({})).view(), terms.view());
    return sqrt(squares);
  };
  if (p == 2.0 && x.dtype() != DType::f64) return to(root_of_squares(x), x.dtype());
  const Tensor magnitude = abs(to(x, DType::f64));
  const Tensor largest = computed(ReduceOp::maximum, magnitude, reduction, true, DType::f64);
  if (p == 2.0) {
    kernels::unary(stream, kernels::UnaryOp::power_of_two, largest.view(), largest.view());
    return largest * root_of_squares(magnitude / largest);
  }
  const Tensor scale = masked_fill(largest, logical_or(largest == 0.0, largest == infinity), 1.0);
  return to(scale * pow(sum(pow(magnitude / scale, p), dims, true), 1.0 / p), x.dtype());
}

/// Returns the derivative of the p-norm `length` (kept) by x; both have the compute dtype of x.
Tensor slope_of_norm(const Tensor& x, const Tensor& length, double p, const ReducedDims& reduction) {
  if (p == 0.0) return zeros_like(x);
  if (p == 1.0) return sign(x);
  if (p == infinity) return sign(x) * shares_of_extremum(ReduceOp::maximum, abs(x), length.detach(), reduction);
  if (p == 2.0) return x / masked_fill(length, length == 0.0, infinity);  // 0 at 0, also in the second derivative
  const Tensor none = x == 0.0;
  const Tensor ratio = abs(masked_fill(x, none, 1.0)) / masked_fill(length, length == 0.0, 1.0);
  return masked_fill(sign(x) * pow(ratio, p - 1.0), none, 0.0);
}

Tensor record_norm(const Tensor& x, double p, const Dims& dims) {
  Tensor out = computed_norm(x, p, dims);
  if (wants_gradient({x}))
    record("norm", {x}, {out}, recipe([p, dims](const Tensor& input) { return computed_norm(input, p, dims); }),
           [x = SavedTensor(x), out = SavedTensor::output(out), p,
            reduction = ReducedDims("norm", x, dims)](const BackwardCall& call) -> Gradients {
             const DType dtype = call.gradient().dtype(), wide = compute_dtype(dtype);
             if (reduction.elements == 0) return {zeros_like(x.unpack())};
             const Tensor slope = slope_of_norm(to(x.unpack(), wide), to(out.unpack(), wide), p, reduction);
             return {to(mul_no_nan(to(call.gradient(), wide), slope), dtype)};
           });
  return out;
}

}  // namespace

Tensor norm(TensorArg x, double p, const Dims& dims, Keep keep) {
  if (const auto cast = autocast("norm", {x}); !cast.empty()) return norm(cast[0], p, dims, keep);
  check_floating("norm", {{"x", x}});
  if (!(p >= 0.0)) fail<ValueError>("norm", fmt::format("p {} is neither 0, positive nor inf", p), {{"x", x}});
  const ReducedDims reduction("norm", x, dims);
  const bool power = p != 0.0 && p != 1.0 && p != 2.0 && p != infinity;
  if (power && is_half(x->dtype())) return to(norm(to(*x, DType::f32), p, dims, keep), x->dtype());
  const Tensor length = record_norm(x, p, dims);
  return keep ? length : reshape(length, reduction.dropped);
}

}  // namespace poolgrad
