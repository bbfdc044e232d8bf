// Scalar definitions of every unary and binary operation, and of the derivatives of the unary ones, for host and
// device. They are functors F<V> with static functions for float, double, int64_t (if the operation supports integers)
// and vectors of these. The vectorized CPU path therefore uses the same definitions. Selections keep NaN a NaN.
//
// A binary functor has value(x, y). A unary one has value(x, a, b) and gradient(g, x, y, a, b) = g * d op / dx with y =
// op(x). `reads_input` and `reads_output` say whether the gradient reads x or y; `on_integers` says whether value()
// exists for int64_t.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/elementwise.h"
#include "kernels/functors/math.h"

namespace poolgrad::kernels {
namespace functors {

template <class V>
using Scalar = typename Math<V>::Scalar;

/// Truth value: 0 or 1 in the operand's type.
template <class V, class Condition>
POOLGRAD_HD V truth(Condition condition) {
  const V zero{}, one = zero + Scalar<V>(1);
  return condition ? one : zero;
}

/// Type for sums and products: integers wrap around at the ends of their range.
template <class V, bool = std::is_integral_v<V>&& std::is_signed_v<V>>
struct Wrapping {
  using type = V;
};
template <class V>
struct Wrapping<V, true> {
  using type = std::make_unsigned_t<V>;
};

template <class V>
struct Add {
  using W = typename Wrapping<V>::type;
  static POOLGRAD_HD V value(V x, V y) { return static_cast<V>(static_cast<W>(x) + static_cast<W>(y)); }
};
template <class V>
struct Sub {
  using W = typename Wrapping<V>::type;
  static POOLGRAD_HD V value(V x, V y) { return static_cast<V>(static_cast<W>(x) - static_cast<W>(y)); }
};
template <class V>
struct Mul {
  using W = typename Wrapping<V>::type;
  static POOLGRAD_HD V value(V x, V y) { return static_cast<V>(static_cast<W>(x) * static_cast<W>(y)); }
};
/// Integers truncate towards zero; x / 0 is 0.
template <class V>
struct Div {
  static POOLGRAD_HD V value(V x, V y) {
    if constexpr (std::is_integral_v<V>)
      return y == 0 ? 0 : (y == -1 ? static_cast<V>(-static_cast<std::uint64_t>(x)) : x / y);
    else
      return x / y;
  }
};
/// Remainder of truncating division, with the sign of x. For integers and y = 0 it is x.
template <class V>
struct Fmod {
  static POOLGRAD_HD V value(V x, V y) {
    if constexpr (std::is_integral_v<V>)
      return y == 0 ? x : (y == -1 ? 0 : x % y);  // INT_MIN % -1 would trap
    else
      return Math<V>::fmod(x, y);
  }
};
/// Remainder of floor division, with the sign of y.
template <class V>
struct Remainder {
  static POOLGRAD_HD V value(V x, V y) {
    const V zero{}, rest = Fmod<V>::value(x, y);
    return (((rest < zero) != (y < zero)) & (rest != zero)) ? rest + y : rest;
  }
};
template <class V>
struct Pow {
  static POOLGRAD_HD V value(V x, V y) { return Math<V>::pow(x, y); }
};
template <class V>
struct Atan2 {
  static constexpr bool on_integers = false;
  static POOLGRAD_HD V value(V y, V x) { return Math<V>::atan2(y, x); }
};
template <class V>
struct Maximum {
  static POOLGRAD_HD V value(V x, V y) { return x > y ? x : (x != x ? x : y); }
};
template <class V>
struct Minimum {
  static POOLGRAD_HD V value(V x, V y) { return x < y ? x : (x != x ? x : y); }
};
/// x * y, but 0 if x is 0 and y infinite or NaN (TensorFlow's multiply_no_nan).
template <class V>
struct MulNoNan {
  static POOLGRAD_HD V value(V x, V y) {
    const V product = Mul<V>::value(x, y);
    return x == V{} ? (product == product ? product : V{}) : product;
  }
};
/// Share of x in the gradient of maximum(x, y): 1 if x is the result, 1/2 if x equals y.
template <class V>
struct MaximumShare {
  static POOLGRAD_HD V value(V x, V y) { return of(x > y, x, y); }
  template <class Condition>
  static POOLGRAD_HD V of(Condition first, V x, V y) {
    const V zero{}, half = zero + static_cast<Scalar<V>>(0.5), one = zero + Scalar<V>(1);
    return first ? one : (x == y ? half : (x == x ? zero : (y == y ? one : half)));
  }
};
template <class V>
struct MinimumShare {
  static POOLGRAD_HD V value(V x, V y) { return MaximumShare<V>::of(x < y, x, y); }
};
template <class V>
struct Equal {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x == y); }
};
template <class V>
struct NotEqual {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x != y); }
};
template <class V>
struct Less {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x < y); }
};
template <class V>
struct LessEqual {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x <= y); }
};
template <class V>
struct Greater {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x > y); }
};
template <class V>
struct GreaterEqual {
  static POOLGRAD_HD V value(V x, V y) { return truth<V>(x >= y); }
};
template <class V>
struct LogicalAnd {
  static POOLGRAD_HD V value(V x, V y) { return x == V{} ? V{} : truth<V>(y != V{}); }
};
template <class V>
struct LogicalOr {
  static POOLGRAD_HD V value(V x, V y) { return x == V{} ? truth<V>(y != V{}) : V{} + Scalar<V>(1); }
};

// Unary.

struct FloatOnly {
  static constexpr bool on_integers = false, reads_input = true, reads_output = false;
};
struct AnyType {
  static constexpr bool on_integers = true, reads_input = true, reads_output = false;
};
struct FromOutput {
  static constexpr bool on_integers = false, reads_input = false, reads_output = true;
};
/// Piecewise constant: the derivative is 0.
template <class V>
struct Flat {
  static constexpr bool on_integers = true, reads_input = false, reads_output = false;
  static POOLGRAD_HD V gradient(V g, V, V, V, V) { return V{} * g; }
};

template <class V>
struct Neg : AnyType {
  static constexpr bool reads_input = false;
  static POOLGRAD_HD V value(V x, V, V) { return static_cast<V>(-static_cast<typename Wrapping<V>::type>(x)); }
  static POOLGRAD_HD V gradient(V g, V, V, V, V) { return -g; }
};
template <class V>
struct Sign : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) {
    const V zero{}, one = zero + Scalar<V>(1);
    return x > zero ? one : (x < zero ? -one : x);
  }
};
template <class V>
struct Abs : AnyType {
  static POOLGRAD_HD V value(V x, V, V) { return x > V{} ? x : Sub<V>::value(V{}, x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * Sign<V>::value(x, x, x); }
};
template <class V>
struct Square : AnyType {
  static POOLGRAD_HD V value(V x, V, V) { return Mul<V>::value(x, x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * x * Scalar<V>(2); }
};
template <class V>
struct Sqrt : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::sqrt(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * Scalar<V>(0.5) / y; }
};
template <class V>
struct Rsqrt : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Scalar<V>(1) / Math<V>::sqrt(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * y * y * y * Scalar<V>(-0.5); }
};
template <class V>
struct Reciprocal : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Scalar<V>(1) / x; }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return -g * y * y; }
};
template <class V>
struct Exp : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::exp(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * y; }
};
template <class V>
struct Expm1 : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::expm1(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * (y + Scalar<V>(1)); }
};
template <class V>
struct Log : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::log(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g / x; }
};
template <class V>
struct Log1p : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::log1p(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g / (x + Scalar<V>(1)); }
};
template <class V>
struct Log2 : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::log2(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g / (x * Scalar<V>(0.693147180559945309)); }
};
template <class V>
struct Log10 : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::log10(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g / (x * Scalar<V>(2.302585092994045684)); }
};
template <class V>
struct Exp2 : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::exp2(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * (y * Scalar<V>(0.693147180559945309)); }
};
template <class V>
struct Sin : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::sin(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * Math<V>::cos(x); }
};
template <class V>
struct Cos : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::cos(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return -g * Math<V>::sin(x); }
};
template <class V>
struct Tan : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::tan(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * (y * y + Scalar<V>(1)); }
};
template <class V>
struct Asin : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::asin(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g / Math<V>::sqrt((Scalar<V>(1) - x) * (Scalar<V>(1) + x));  // 1 - x^2 without cancellation near 1
  }
};
template <class V>
struct Acos : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::acos(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return -Asin<V>::gradient(g, x, x, x, x); }
};
template <class V>
struct Atan : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::atan(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g / (x * x + Scalar<V>(1)); }
};
template <class V>
struct Sinh : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::sinh(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * Math<V>::cosh(x); }
};
template <class V>
struct Cosh : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::cosh(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * Math<V>::sinh(x); }
};
template <class V>
struct Tanh : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::tanh(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * (Scalar<V>(1) - y * y); }
};
template <class V>
struct Sigmoid : FromOutput {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::sigmoid(x); }
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) { return g * y * (Scalar<V>(1) - y); }
};
template <class V>
struct Erf : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::erf(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * Scalar<V>(1.128379167095512574) * Math<V>::exp(-x * x);  // 2 / sqrt(pi)
  }
};
template <class V>
struct Relu : AnyType {
  static POOLGRAD_HD V value(V x, V, V) { return x < V{} ? V{} : x; }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return x <= V{} ? V{} : g; }
};
/// x Phi(x) (Hendrycks & Gimpel 2016).
template <class V>
struct Gelu : FloatOnly {
  static POOLGRAD_HD V phi(V x) {  // the normal distribution function
    return Scalar<V>(0.5) * (Math<V>::erf(x * Scalar<V>(0.707106781186547524)) + Scalar<V>(1));
  }
  static POOLGRAD_HD V value(V x, V, V) { return x * phi(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V density = Scalar<V>(0.398942280401432678) * Math<V>::exp(Scalar<V>(-0.5) * x * x);
    return g * (phi(x) + x * density);
  }
};
/// The tanh approximation: x / 2 (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class V>
struct GeluTanh : FloatOnly {
  static constexpr double slope = 1.595769121605730711;  // 2 sqrt(2 / pi)
  static constexpr double cubic = 0.044715;
  static POOLGRAD_HD V value(V x, V, V) {
    const V twice_u = x * (Scalar<V>(slope) + Scalar<V>(slope * cubic) * x * x);
    return x * Math<V>::sigmoid(twice_u);
  }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V square = x * x;
    const V s = Math<V>::sigmoid(x * (Scalar<V>(slope) + Scalar<V>(slope * cubic) * square));
    const V derivative = x * (Scalar<V>(slope) + Scalar<V>(3 * slope * cubic) * square);  // x d(2 u) / dx
    return g * (s + s * (Scalar<V>(1) - s) * derivative);
  }
};
/// x sigmoid(x), also called swish.
template <class V>
struct Silu : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) { return x * Math<V>::sigmoid(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V s = Math<V>::sigmoid(x);
    return g * s * (Scalar<V>(1) + x * (Scalar<V>(1) - s));
  }
};
/// x tanh(log(1 + e^x)) (Misra 2020). With e = e^x, n = e (e + 2): the tangent is n / (n + 2), 1 beyond x = 20.
template <class V>
struct Mish : FloatOnly {
  static POOLGRAD_HD V bounded_exp(V x) {
    const V limit = V{} + Scalar<V>(20);
    return Math<V>::exp(x > limit ? limit : x);
  }
  static POOLGRAD_HD V value(V x, V, V) {
    const V e = bounded_exp(x), n = e * (e + Scalar<V>(2));
    return x * (n / (n + Scalar<V>(2)));
  }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V e = bounded_exp(x), n = e * (e + Scalar<V>(2)), d = n + Scalar<V>(2);
    const V slope = n / d + x * (Scalar<V>(4) * (e / d) * ((e + Scalar<V>(1)) / d));
    return x > V{} + Scalar<V>(20) ? g : g * slope;
  }
};
/// x above 0, a (e^x - 1) elsewhere (Clevert et al. 2016); at 0 the gradient is a.
template <class V>
struct Elu : FloatOnly {
  static POOLGRAD_HD V value(V x, V a, V) { return x > V{} ? x : a * Math<V>::expm1(x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V) { return x > V{} ? g : g * (a * Math<V>::exp(x)); }
};
/// log(1 + e^x) without overflow.
template <class V>
struct Softplus : FloatOnly {
  static POOLGRAD_HD V value(V x, V, V) {
    return Relu<V>::value(x, x, x) + Math<V>::log1p(Math<V>::exp(-Abs<V>::value(x, x, x)));
  }
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) { return g * Math<V>::sigmoid(x); }
};
template <class V>
struct Floor : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::floor(x); }
};
template <class V>
struct Ceil : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::ceil(x); }
};
template <class V>
struct Round : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::round(x); }
};
template <class V>
struct LogicalNot : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) { return truth<V>(x == V{}); }
};
template <class V>
struct IsNan : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) { return truth<V>(x != x); }
};
template <class V>
struct IsFinite : Flat<V> {
  static POOLGRAD_HD V value(V x, V, V) {
    return truth<V>(x - x == V{});  // infinity - infinity is NaN
  }
};
template <class V>
struct LeakyRelu : FloatOnly {
  static POOLGRAD_HD V value(V x, V a, V) { return x > V{} ? x : a * x; }
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V) { return x > V{} ? g : a * g; }
};
template <class V>
struct Clamp : AnyType {
  static POOLGRAD_HD V value(V x, V a, V b) { return x > b ? b : (x < a ? a : x); }
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V b) { return x > b ? V{} : (x < a ? V{} : g); }
};
template <class V>
struct Power : AnyType {
  static POOLGRAD_HD V value(V x, V a, V) { return Math<V>::pow(x, a); }
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V) {
    return a == V{} ? V{} : g * a * Math<V>::pow(x, a - Scalar<V>(1));
  }
};
template <class V>
struct Affine : AnyType {
  static constexpr bool reads_input = false;
  using W = typename Wrapping<V>::type;
  static POOLGRAD_HD V value(V x, V a, V b) {
    return static_cast<V>(static_cast<W>(a) * static_cast<W>(x) + static_cast<W>(b));
  }
  static POOLGRAD_HD V gradient(V g, V, V, V a, V) { return a * g; }
};

/// Power of two for scaling norms without rounding.
template <class V>
struct PowerOfTwo : Flat<V> {
  static constexpr bool on_integers = false;
  static POOLGRAD_HD V value(V x, V, V) { return Math<V>::power_of_two(x); }
};

/// Division by a number, rounded once.
template <class V>
struct Quotient : AnyType {
  static constexpr bool reads_input = false;
  static POOLGRAD_HD V value(V x, V a, V) { return Div<V>::value(x, a); }
  static POOLGRAD_HD V gradient(V g, V, V, V a, V) { return g / a; }
};

}  // namespace functors

/// Wraps a functor template before instantiation.
template <template <class V> class F>
struct Functor {
  template <class V>
  using on = F<V>;
};

/// Calls f with the Functor of `op`.
template <class F>
decltype(auto) with_functor(UnaryOp op, const F& f) {
  switch (op) {
#define POOLGRAD_OP(name, functor) \
  case UnaryOp::name: return f(Functor<functors::functor>{});
    POOLGRAD_UNARY_OPS(POOLGRAD_OP)
#undef POOLGRAD_OP
  }
  __builtin_unreachable();
}
template <class F>
decltype(auto) with_functor(BinaryOp op, const F& f) {
  switch (op) {
#define POOLGRAD_OP(name, functor) \
  case BinaryOp::name: return f(Functor<functors::functor>{});
    POOLGRAD_BINARY_OPS(POOLGRAD_OP)
#undef POOLGRAD_OP
  }
  __builtin_unreachable();
}

/// Whether a binary functor supports integers.
template <class F>
constexpr bool takes_integers() {
  if constexpr (requires { F::template on<float>::on_integers; })
    return F::template on<float>::on_integers;
  else
    return true;
}

/// Calls f with the Functor of an operation of scatter_reduce().
template <class F>
void with_combination(BinaryOp op, const F& f) {
  switch (op) {
    case BinaryOp::add: return f(Functor<functors::Add>{});
    case BinaryOp::mul: return f(Functor<functors::Mul>{});
    case BinaryOp::maximum: return f(Functor<functors::Maximum>{});
    case BinaryOp::minimum: return f(Functor<functors::Minimum>{});
    default: return;
  }
}

}  // namespace poolgrad::kernels
