#include "autograd/operators/arithmetic.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

/// Checks, allocates and computes op(a, b); callers record. The result has the dtype of the operands, which must be
/// numeric, or bool for comparisons.
Tensor computed(const char* name, BinaryOp op, const Tensor& a, const Tensor& b, std::optional<DType> result = {},
                std::source_location at = std::source_location::current()) {
  check_alike(name, {{"lhs", a}, {"rhs", b}});
  if (!result && a.dtype() == DType::boolean)
    fail<DTypeError>(name, "bool is not a numeric dtype", {{"lhs", a}, {"rhs", b}});
  const Shape shape = broadcast_operands(name, {{"lhs", a}, {"rhs", b}});
  Tensor out = Tensor::empty(shape, {result.value_or(a.dtype()), a.device()}, at);
  kernels::binary(current_stream(a.device()), op, out.view(), broadcast_view(a, shape), broadcast_view(b, shape));
  return out;
}

/// Saves a tensor only if its gradient is wanted.
SavedTensor kept_for(const Tensor& other, const Tensor& tensor) {
  return other.requires_grad() ? SavedTensor(tensor) : SavedTensor();
}

/// Shared by maximum and minimum. The winner gets the gradient and ties share it. `share` gives the part of a.
Tensor record_extremum(const char* name, BinaryOp op, BinaryOp share, const Tensor& a, const Tensor& b);

/// Records a product. Its gradients are products by `gradient`: mul or mul_no_nan.
Tensor record_product(BinaryOp op, BinaryOp gradient, const Tensor& a, const Tensor& b,
                      std::source_location at = std::source_location::current()) {
  Tensor out = computed("mul", op, a, b, {}, at);
  if (wants_gradient({a, b}))
    record("mul", {a, b}, {out},
           recipe([op, gradient](const Tensor& x, const Tensor& y) { return record_product(op, gradient, x, y); }),
           [gradient, left = a.shape(), right = b.shape(), a = kept_for(b, a),
            b = kept_for(a, b)](const BackwardCall& call) -> Gradients {
             const auto times = [&](const SavedTensor& other) {
               return record_product(gradient, gradient, call.gradient(), other.unpack());
             };
             return {call.needs(0) ? sum_to(times(b), left) : Tensor(),
                     call.needs(1) ? sum_to(times(a), right) : Tensor()};
           });
  return out;
}

}  // namespace

Tensor add(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("add", {a, b}); !cast.empty()) return add(cast[0], cast[1]);
  Tensor out = computed("add", BinaryOp::add, a, b);
  if (wants_gradient({a, b}))
    record("add", {a, b}, {out}, recipe([](const Tensor& x, const Tensor& y) { return add(x, y); }),
           [left = a->shape(), right = b.shape()](const BackwardCall& call) -> Gradients {
             return {call.needs(0) ? sum_to(call.gradient(), left) : Tensor(),
                     call.needs(1) ? sum_to(call.gradient(), right) : Tensor()};
           });
  return out;
}

Tensor sub(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("sub", {a, b}); !cast.empty()) return sub(cast[0], cast[1]);
  Tensor out = computed("sub", BinaryOp::sub, a, b);
  if (wants_gradient({a, b}))
    record("sub", {a, b}, {out}, recipe([](const Tensor& x, const Tensor& y) { return sub(x, y); }),
           [left = a->shape(), right = b.shape()](const BackwardCall& call) -> Gradients {
             return {call.needs(0) ? sum_to(call.gradient(), left) : Tensor(),
                     call.needs(1) ? neg(sum_to(call.gradient(), right)) : Tensor()};
           });
  return out;
}

Tensor mul(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("mul", {a, b}); !cast.empty()) return mul(cast[0], cast[1]);
  return record_product(BinaryOp::mul, BinaryOp::mul, a, b);
}
Tensor mul_no_nan(const Tensor& weight, const Tensor& x) {
  return record_product(BinaryOp::mul_no_nan, BinaryOp::mul_no_nan, weight, x);
}
Tensor mul_with_no_nan_gradients(const Tensor& a, const Tensor& b) {
  return record_product(BinaryOp::mul, BinaryOp::mul_no_nan, a, b);
}

Tensor div(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("div", {a, b}); !cast.empty()) return div(cast[0], cast[1]);
  Tensor out = computed("div", BinaryOp::div, a, b);
  if (wants_gradient({a, b}))
    record("div", {a, b}, {out}, recipe([](const Tensor& x, const Tensor& y) { return div(x, y); }),
           [left = a->shape(), right = b.shape(), a = kept_for(b, a), b = SavedTensor(b)](const BackwardCall& call) {
             Gradients gradients(2);
             const DType dtype = call.gradient().dtype(), wide = call.needs(1) ? compute_dtype(dtype) : dtype;
             const Tensor divisor = to(b.unpack(), wide), ratio = to(call.gradient(), wide) / divisor;
             if (call.needs(0)) gradients[0] = to(sum_to(ratio, left), dtype);
             if (call.needs(1)) gradients[1] = to(neg(sum_to(ratio * (to(a.unpack(), wide) / divisor), right)), dtype);
             return gradients;
           });
  return out;
}

Tensor pow(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("pow", {a, b}); !cast.empty()) return pow(cast[0], cast[1]);
  Tensor out = computed("pow", BinaryOp::pow, a, b);
  if (wants_gradient({a, b}))
    record("pow", {a, b}, {out}, recipe([](const Tensor& x, const Tensor& y) { return pow(x, y); }),
           [a = SavedTensor(a), b = SavedTensor(b)](const BackwardCall& call) {
             Gradients gradients(2);
             const DType dtype = call.gradient().dtype(), wide = compute_dtype(dtype);
             const Tensor grad = to(call.gradient(), wide), base = to(a.unpack(), wide),
                          exponent = to(b.unpack(), wide);
             const Tensor zero = zeros({}, base.options());
             if (call.needs(0)) {  // exponent 0 gives 0 even if base^-1 is infinite or NaN
               const double least = wide == DType::f64 ? 1.0 / std::numeric_limits<double>::max()
                                                       : 1.0 / std::numeric_limits<float>::max();
               const Tensor flat = logical_and(logical_not(abs(base) >= least), equal(exponent, zero));
               const Tensor slope = exponent * pow(where(flat, ones({}, base.options()), base), exponent - 1.0);
               gradients[0] = to(sum_to(grad * slope, base.shape()), dtype);
             }
             if (call.needs(1)) {
               const Tensor nonzero = masked_fill(base, equal(base, zero), 1.0);
               gradients[1] = to(sum_to(grad * pow(nonzero, exponent) * log(nonzero), exponent.shape()), dtype);
             }
             return gradients;
           });
  return out;
}

Tensor pow(double base, TensorArg exponent) { return pow(number_beside("pow", exponent, base), exponent); }

Tensor atan2(TensorArg y, const Tensor& x) {
  if (const auto cast = autocast("atan2", {y, x}); !cast.empty()) return atan2(cast[0], cast[1]);
  check_floating("atan2", {{"y", y}, {"x", x}});
  Tensor out = computed("atan2", BinaryOp::atan2, y, x);
  if (wants_gradient({y, x}))
    record("atan2", {y, x}, {out}, recipe([](const Tensor& a, const Tensor& b) { return atan2(a, b); }),
           [y = SavedTensor(y), x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
             const DType dtype = call.gradient().dtype(), wide = compute_dtype(dtype);
             const Tensor a = to(y.unpack(), wide), b = to(x.unpack(), wide);
             // Divides both by the larger one, so that their squares do not overflow.
             const Tensor larger = maximum(abs(a.detach()), abs(b.detach()));
             const Tensor scale = masked_fill(larger, ~((larger > 0.0) & isfinite(larger)), 1.0);
             const Tensor rise = a / scale, run = b / scale, length = square(rise) + square(run);
             const Tensor part = to(call.gradient(), wide) / (masked_fill(length, length == 0.0, 1.0) * scale);
             return {call.needs(0) ? to(sum_to(part * run, a.shape()), dtype) : Tensor(),
                     call.needs(1) ? to(neg(sum_to(part * rise, b.shape())), dtype) : Tensor()};
           });
  return out;
}

namespace {

/// fmod and remainder.
Tensor record_rest(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  if (const auto cast = autocast(name, {a, b}); !cast.empty()) return record_rest(name, op, cast[0], cast[1]);
  Tensor out = computed(name, op, a, b);
  if (wants_gradient({a, b}))
    record(name, {a, b}, {out},
           recipe([name, op](const Tensor& x, const Tensor& y) { return computed(name, op, x, y); }),
           [name, op, left = a.shape(), right = b.shape(), a = kept_for(b, a),
            b = kept_for(b, b)](const BackwardCall& call) -> Gradients {
             const DType dtype = call.gradient().dtype(), wide = compute_dtype(dtype);
             Gradients gradients(2);
             if (call.needs(0)) gradients[0] = sum_to(call.gradient(), left);
             if (call.needs(1)) {
               const Tensor x = to(a.unpack().detach(), wide), y = to(b.unpack().detach(), wide);
               const Tensor whole = round((x - computed(name, op, x, y)) / y);
               gradients[1] = to(neg(sum_to(to(call.gradient(), wide) * whole, right)), dtype);
             }
             return gradients;
           });
  return out;
}

}  // namespace

Tensor fmod(TensorArg a, const Tensor& b) { return record_rest("fmod", BinaryOp::fmod, a, b); }
Tensor fmod(TensorArg a, double b) { return fmod(*a, number_beside("fmod", a, b)); }
Tensor remainder(TensorArg a, const Tensor& b) { return record_rest("remainder", BinaryOp::remainder, a, b); }
Tensor remainder(TensorArg a, double b) { return remainder(*a, number_beside("remainder", a, b)); }

Tensor maximum(TensorArg a, const Tensor& b) {
  return record_extremum("maximum", BinaryOp::maximum, BinaryOp::maximum_share, a, b);
}
Tensor minimum(TensorArg a, const Tensor& b) {
  return record_extremum("minimum", BinaryOp::minimum, BinaryOp::minimum_share, a, b);
}
Tensor maximum(TensorArg a, double b) { return maximum(*a, number_beside("maximum", a, b)); }
Tensor maximum(double a, TensorArg b) { return maximum(number_beside("maximum", b, a), b); }
Tensor minimum(TensorArg a, double b) { return minimum(*a, number_beside("minimum", a, b)); }
Tensor minimum(double a, TensorArg b) { return minimum(number_beside("minimum", b, a), b); }

namespace {

Tensor record_extremum(const char* name, BinaryOp op, BinaryOp share, const Tensor& a, const Tensor& b) {
  if (const auto cast = autocast(name, {a, b}); !cast.empty())
    return record_extremum(name, op, share, cast[0], cast[1]);
  Tensor out = computed(name, op, a, b);
  if (wants_gradient({a, b}))
    record(name, {a, b}, {out},
           recipe([name, op](const Tensor& x, const Tensor& y) { return computed(name, op, x, y); }),
           [name, share, a = SavedTensor(a), b = SavedTensor(b)](const BackwardCall& call) -> Gradients {
             const Tensor left = a.unpack(), right = b.unpack(), &grad = call.gradient();
             const Tensor of_left = computed(name, share, left, right);  // a constant for second derivatives
             return {call.needs(0) ? sum_to(grad * of_left, left.shape()) : Tensor(),
                     call.needs(1) ? sum_to(grad * (1.0 - of_left), right.shape()) : Tensor()};
           });
  return out;
}

}  // namespace

Tensor pow(TensorArg a, double exponent) {
  if (!is_floating(a->dtype()) && !has_number(DType::i64, exponent))
    fail<ValueError>("pow", fmt::format("exponent {} of an integer is not an i64 number", exponent), {{"x", a}});
  return record_unary("power", UnaryOp::power, a, exponent, 0.0, Domain::numbers);
}

namespace {

/// Returns scale * x + shift, the result of x `op` number.
Tensor with_number(const char* op, const Tensor& x, double number, double scale, double shift,
                   std::source_location at = std::source_location::current()) {
  check_devices(op, {{"x", x}});
  if (x.dtype() == DType::boolean) fail<DTypeError>(op, "bool is not a numeric dtype", {{"x", x}});
  check_whole(op, x, {number});
  return record_unary("affine", UnaryOp::affine, x, scale, shift, Domain::numbers, at);
}

}  // namespace

Tensor affine(TensorArg x, double scale, double shift) {
  check_whole("affine", x, {scale, shift});
  return record_unary("affine", UnaryOp::affine, x, scale, shift, Domain::numbers);
}

Tensor operator+(TensorArg a, const Tensor& b) { return add(*a, b); }
Tensor operator-(TensorArg a, const Tensor& b) { return sub(*a, b); }
Tensor operator*(TensorArg a, const Tensor& b) { return mul(*a, b); }
Tensor operator/(TensorArg a, const Tensor& b) { return div(*a, b); }
Tensor operator+(TensorArg a, double b) { return with_number("add", a, b, 1.0, b); }
Tensor operator+(double a, TensorArg b) { return with_number("add", b, a, 1.0, a); }
Tensor operator-(TensorArg a, double b) { return with_number("sub", a, b, 1.0, -b); }
Tensor operator-(double a, TensorArg b) { return with_number("sub", b, a, -1.0, a); }
// The shift is -0: adding 0 would turn -0 into 0.
Tensor operator*(TensorArg a, double b) { return with_number("mul", a, b, b, -0.0); }
Tensor operator*(double a, TensorArg b) { return with_number("mul", b, a, a, -0.0); }
Tensor operator/(TensorArg a, double b) {
  check_whole("div", a, {b});
  return record_unary("div", UnaryOp::quotient, a, b, 0.0, Domain::numbers);
}
Tensor operator/(double a, TensorArg b) {
  return is_floating(b->dtype()) ? affine(reciprocal(*b), a, -0.0) : div(full({}, a, b->options()), b);
}
Tensor operator-(TensorArg x) { return neg(*x); }

Tensor sum_to(TensorArg x, const Shape& shape) {
  if (x->shape() == shape) return is_floating(x->dtype()) ? *x : to(*x, DType::i64);
  const int lead = x->dim() - shape.rank();
  Dims dims;
  for (int d = 0; d < x->dim(); ++d) {
    if (d < lead || (shape[d - lead] == 1 && x->shape()[d] != 1)) {
      dims.append(d);
    } else if (shape[d - lead] != x->shape()[d]) {
      fail<ShapeError>("sum_to", "does not broadcast from " + to_string(shape), {{"x", *x}});
    }
  }
  return reshape(sum(*x, dims, /*keep=*/true), shape);
}

namespace {

Tensor compared(const char* name, BinaryOp op, const Tensor& a, const Tensor& b,
                std::source_location at = std::source_location::current()) {
  if (const auto cast = autocast(name, {a, b}); !cast.empty()) return compared(name, op, cast[0], cast[1], at);
  return computed(name, op, a, b, DType::boolean, at);
}

Tensor compared_with_number(const char* name, Tensor (*compare)(TensorArg, const Tensor&), const Tensor& a, double b) {
  return compare(a, number_beside(name, a, b));
}

}  // namespace

Tensor equal(TensorArg a, const Tensor& b) { return compared("equal", BinaryOp::eq, a, b); }
Tensor not_equal(TensorArg a, const Tensor& b) { return compared("not_equal", BinaryOp::ne, a, b); }
Tensor less(TensorArg a, const Tensor& b) { return compared("less", BinaryOp::lt, a, b); }
Tensor less_equal(TensorArg a, const Tensor& b) { return compared("less_equal", BinaryOp::le, a, b); }
Tensor greater(TensorArg a, const Tensor& b) { return compared("greater", BinaryOp::gt, a, b); }
Tensor greater_equal(TensorArg a, const Tensor& b) { return compared("greater_equal", BinaryOp::ge, a, b); }

Tensor operator==(TensorArg a, TensorArg b) { return equal(*a, *b); }
Tensor operator!=(TensorArg a, TensorArg b) { return not_equal(*a, *b); }
Tensor operator<(TensorArg a, const Tensor& b) { return less(*a, b); }
Tensor operator<=(TensorArg a, const Tensor& b) { return less_equal(*a, b); }
Tensor operator>(TensorArg a, const Tensor& b) { return greater(*a, b); }
Tensor operator>=(TensorArg a, const Tensor& b) { return greater_equal(*a, b); }
Tensor operator==(TensorArg a, double b) { return compared_with_number("equal", equal, a, b); }
Tensor operator!=(TensorArg a, double b) { return compared_with_number("not_equal", not_equal, a, b); }
Tensor operator<(TensorArg a, double b) { return compared_with_number("less", less, a, b); }
Tensor operator<=(TensorArg a, double b) { return compared_with_number("less_equal", less_equal, a, b); }
Tensor operator>(TensorArg a, double b) { return compared_with_number("greater", greater, a, b); }
Tensor operator>=(TensorArg a, double b) { return compared_with_number("greater_equal", greater_equal, a, b); }
Tensor operator==(double a, TensorArg b) { return *b == a; }
Tensor operator!=(double a, TensorArg b) { return *b != a; }
Tensor operator<(double a, TensorArg b) { return *b > a; }
Tensor operator<=(double a, TensorArg b) { return *b >= a; }
Tensor operator>(double a, TensorArg b) { return *b < a; }
Tensor operator>=(double a, TensorArg b) { return *b <= a; }

Tensor logical_and(TensorArg a, const Tensor& b) {
  return computed("logical_and", BinaryOp::logical_and, a, b, DType::boolean);
}
Tensor logical_or(TensorArg a, const Tensor& b) {
  return computed("logical_or", BinaryOp::logical_or, a, b, DType::boolean);
}
Tensor logical_not(TensorArg x) { return unary_test("logical_not", kernels::UnaryOp::logical_not, x); }

namespace {

void check_bools(const char* op, Operands operands) {
  check_alike(op, operands);
  check_dtype(op, operands.begin()->tensor, DType::boolean, "needs bool tensors", operands);
}

}  // namespace

Tensor operator&(TensorArg a, const Tensor& b) {
  check_bools("&", {{"lhs", a}, {"rhs", b}});
  return logical_and(*a, b);
}
Tensor operator|(TensorArg a, const Tensor& b) {
  check_bools("|", {{"lhs", a}, {"rhs", b}});
  return logical_or(*a, b);
}
Tensor operator~(TensorArg x) {
  check_bools("~", {{"x", x}});
  return logical_not(*x);
}

// In-place operators.

namespace {

/// Implements x op= y, with `y` undefined for a number. compute() records x op y; write() writes it over x.
template <class Compute, class Write>
Tensor assigned(const char* op, Tensor x, const Tensor& y, const Compute& compute, const Write& write) {
  const Operands operands = {{"lhs", x}, {"rhs", y}};
  check_devices(op, {{"lhs", x}, {"rhs", y.defined() ? y : x}});
  if (y.defined() && broadcast_operands(op, operands) != x.shape())
    fail<ShapeError>(op, "the right side does not broadcast to the left", operands);
  if (repeats_elements(x.geometry()))
    fail<ShapeError>(op, "several elements of the left side share one place", operands);
  if (!wants_gradient({x, y})) {
    write();
    x.bump_version();
    return x;
  }
  if (x.requires_grad() && x.is_leaf())
    fail<Error>(op, "an in-place write to a leaf that requires grad needs a NoGradGuard", operands);
  if (x.storage().use_count() > 1)
    fail<Error>(op, "a view or a backward shares the memory of the left side; write x = x + y instead", operands);
  swap_tensors(x, to(compute(), x.dtype()));
  return x;
}

Tensor assigned_tensor(const char* op, BinaryOp kernel, Tensor (*function)(TensorArg, const Tensor&), const Tensor& x,
                       const Tensor& y) {
  if (!y.defined()) fail<ValueError>(op, "the right side is undefined", {{"lhs", x}});
  const auto compute = [&] { return function(x, y); };
  return assigned(op, x, y, compute, [&] {
    if (x.dtype() != y.dtype() || x.dtype() == DType::boolean) {  // casts by autocast, or throws
      Tensor(x).copy_from(compute());
    } else {
      const Tensor right = y.shares_storage_with(x) && y.geometry() != x.geometry() ? y.copy() : y;
      kernels::binary(current_stream(x.device()), kernel, x.view(), x.view(), broadcast_view(right, x.shape()));
    }
  });
}

/// Assigns x = kernel(x, a, b), the result of x `op` number.
Tensor assigned_number(const char* op, UnaryOp kernel, const Tensor& x, double number, double a, double b,
                       std::source_location at = std::source_location::current()) {
  if (x.defined() && x.dtype() == DType::boolean) fail<DTypeError>(op, "bool is not a numeric dtype", {{"lhs", x}});
  check_whole(op, x, {number, a, b});
  return assigned(
      op, x, {},
      [&] { return record_unary(kernel == UnaryOp::affine ? "affine" : "div", kernel, x, a, b, Domain::floating, at); },
      [&] { kernels::unary(current_stream(x.device()), kernel, x.view(), x.view(), a, b); });
}

}  // namespace

Tensor operator+=(TensorArg x, const Tensor& y) { return assigned_tensor("+=", BinaryOp::add, add, x, y); }
Tensor operator-=(TensorArg x, const Tensor& y) { return assigned_tensor("-=", BinaryOp::sub, sub, x, y); }
Tensor operator*=(TensorArg x, const Tensor& y) { return assigned_tensor("*=", BinaryOp::mul, mul, x, y); }
Tensor operator/=(TensorArg x, const Tensor& y) { return assigned_tensor("/=", BinaryOp::div, div, x, y); }
Tensor operator+=(TensorArg x, double y) { return assigned_number("+=", UnaryOp::affine, x, y, 1.0, y); }
Tensor operator-=(TensorArg x, double y) { return assigned_number("-=", UnaryOp::affine, x, y, 1.0, -y); }
Tensor operator*=(TensorArg x, double y) { return assigned_number("*=", UnaryOp::affine, x, y, y, -0.0); }
Tensor operator/=(TensorArg x, double y) { return assigned_number("/=", UnaryOp::quotient, x, y, y, 0.0); }

}  // namespace poolgrad
