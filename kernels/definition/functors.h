// The scalar definition of every elementwise operation and its derivative, host and device alike. The same templates
// take float, double, int64_t (where the operation makes sense on integers) and vectors of these, so that the
// vectorised CPU path is this text too.
//
// A unary functor has value(x, a, b) and gradient(g, x, y, a, b) = g * d op / dx, where y = op(x); `reads_input` and
// `reads_output` say which of the two it looks at, `on_integers` whether value() exists for int64_t. Selections are
// written so that NaN stays NaN.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/definition/host_device.h"
#include "kernels/definition/math.h"

namespace poolgrad::kernels::functors {

struct FloatOnly {
  static constexpr bool on_integers = false, reads_input = true, reads_output = false;
};
struct AnyType {
  static constexpr bool on_integers = true, reads_input = true, reads_output = false;
};
/// Piecewise constant: the derivative is 0.
struct Flat {
  static constexpr bool on_integers = true, reads_input = false, reads_output = false;
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V, V, V) {
    return V{} * g;
  }
};
struct FromOutput {
  static constexpr bool on_integers = false, reads_input = false, reads_output = true;
};

template <class V>
using Scalar = typename Math<V>::Scalar;

struct Neg : AnyType {
  static constexpr bool reads_input = false;
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return -x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V, V, V) {
    return -g;
  }
};
struct Sign : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    const V zero{}, one = zero + Scalar<V>(1);
    return x > zero ? one : (x < zero ? -one : x);
  }
};
struct Abs : AnyType {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return x > V{} ? x : V{} - x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * Sign::value(x, x, x);
  }
};
struct Square : AnyType {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return x * x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * x * Scalar<V>(2);
  }
};
struct Sqrt : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::sqrt(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * Scalar<V>(0.5) / y;
  }
};
struct Rsqrt : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Scalar<V>(1) / Math<V>::sqrt(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * y * y * y * Scalar<V>(-0.5);
  }
};
struct Reciprocal : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Scalar<V>(1) / x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return -g * y * y;
  }
};
struct Exp : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::exp(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * y;
  }
};
struct Expm1 : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::expm1(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * (y + Scalar<V>(1));
  }
};
struct Log : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::log(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g / x;
  }
};
struct Log1p : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::log1p(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g / (x + Scalar<V>(1));
  }
};
struct Sin : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::sin(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * Math<V>::cos(x);
  }
};
struct Cos : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::cos(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return -g * Math<V>::sin(x);
  }
};
struct Tanh : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::tanh(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * (Scalar<V>(1) - y * y);
  }
};
struct Sigmoid : FromOutput {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::sigmoid(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V y, V, V) {
    return g * y * (Scalar<V>(1) - y);
  }
};
struct Erf : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Math<V>::erf(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * Scalar<V>(1.128379167095512574) * Math<V>::exp(-x * x);  // 2 / sqrt(pi)
  }
};
struct Relu : AnyType {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return x < V{} ? V{} : x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return x <= V{} ? V{} : g;
  }
};
/// x Phi(x) (Hendrycks & Gimpel 2016).
struct Gelu : FloatOnly {
  template <class V>
  static POOLGRAD_HD V phi(V x) {  // the normal distribution function
    return Scalar<V>(0.5) * (Math<V>::erf(x * Scalar<V>(0.707106781186547524)) + Scalar<V>(1));
  }
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return x * phi(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V density = Scalar<V>(0.398942280401432678) * Math<V>::exp(Scalar<V>(-0.5) * x * x);
    return g * (phi(x) + x * density);
  }
};
/// The tanh approximation: x / 2 (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh : FloatOnly {
  static constexpr double slope = 1.595769121605730711;  // 2 sqrt(2 / pi)
  static constexpr double cubic = 0.044715;
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    const V twice_u = x * (Scalar<V>(slope) + Scalar<V>(slope * cubic) * x * x);
    return x * Math<V>::sigmoid(twice_u);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V square = x * x;
    const V s = Math<V>::sigmoid(x * (Scalar<V>(slope) + Scalar<V>(slope * cubic) * square));
    const V derivative = x * (Scalar<V>(slope) + Scalar<V>(3 * slope * cubic) * square);  // x d(2 u) / dx
    return g * (s + s * (Scalar<V>(1) - s) * derivative);
  }
};
/// x sigmoid(x), also called swish.
struct Silu : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return x * Math<V>::sigmoid(x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    const V s = Math<V>::sigmoid(x);
    return g * s * (Scalar<V>(1) + x * (Scalar<V>(1) - s));
  }
};
/// log(1 + e^x) without overflow.
struct Softplus : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return Relu::value(x, x, x) + Math<V>::log1p(Math<V>::exp(-Abs::value(x, x, x)));
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V, V) {
    return g * Math<V>::sigmoid(x);
  }
};
template <class V>
inline constexpr bool is_integer = std::is_same_v<V, std::int64_t>;

struct Floor : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    if constexpr (is_integer<V>)
      return x;
    else
      return Math<V>::floor(x);
  }
};
struct Ceil : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    if constexpr (is_integer<V>)
      return x;
    else
      return Math<V>::ceil(x);
  }
};
struct Round : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    if constexpr (is_integer<V>)
      return x;
    else
      return Math<V>::round(x);
  }
};
/// Truth values are 0 and 1 of the operand's type.
template <class V, class Condition>
POOLGRAD_HD V truth(Condition condition) {
  const V zero{}, one = zero + Scalar<V>(1);
  return condition ? one : zero;
}
struct LogicalNot : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return truth<V>(x == V{});
  }
};
struct IsNan : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return truth<V>(x != x);
  }
};
struct IsFinite : Flat {
  template <class V>
  static POOLGRAD_HD V value(V x, V, V) {
    return truth<V>(x - x == V{});  // infinity - infinity is NaN
  }
};
struct LeakyRelu : FloatOnly {
  template <class V>
  static POOLGRAD_HD V value(V x, V a, V) {
    return x > V{} ? x : a * x;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V) {
    return x > V{} ? g : a * g;
  }
};
struct Clamp : AnyType {
  template <class V>
  static POOLGRAD_HD V value(V x, V a, V b) {
    return x > b ? b : (x < a ? a : x);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V b) {
    return x > b ? V{} : (x < a ? V{} : g);
  }
};
/// Integers: by repeated squaring; a negative exponent truncates 1 / x^n.
template <class V>
POOLGRAD_HD V power(V x, V y) {
  if constexpr (is_integer<V>) {
    if (y < 0) return x == 1 ? 1 : (x == -1 ? (y % 2 ? -1 : 1) : 0);
    std::uint64_t result = 1, factor = static_cast<std::uint64_t>(x);
    for (; y > 0; y /= 2, factor *= factor)
      if (y % 2) result *= factor;
    return static_cast<V>(result);
  } else {
    return Math<V>::pow(x, y);
  }
}
struct Power : AnyType {
  template <class V>
  static POOLGRAD_HD V value(V x, V a, V) {
    return power(x, a);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V x, V, V a, V) {
    return a == V{} ? V{} : g * a * power(x, a - Scalar<V>(1));
  }
};
struct Affine : AnyType {
  static constexpr bool reads_input = false;
  template <class V>
  static POOLGRAD_HD V value(V x, V a, V b) {
    return a * x + b;
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V, V a, V) {
    return a * g;
  }
};

struct Add {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x + y;
  }
};
struct Sub {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x - y;
  }
};
struct Mul {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x * y;
  }
};
/// Integers truncate towards zero; x / 0 is 0.
struct Div {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    if constexpr (is_integer<V>)
      return y == 0 ? 0 : (y == -1 ? static_cast<V>(-static_cast<std::uint64_t>(x)) : x / y);
    else
      return x / y;
  }
};
/// By a number, rounded once.
struct Quotient : AnyType {
  static constexpr bool reads_input = false;
  template <class V>
  static POOLGRAD_HD V value(V x, V a, V) {
    return Div::value(x, a);
  }
  template <class V>
  static POOLGRAD_HD V gradient(V g, V, V, V a, V) {
    return g / a;
  }
};
struct Pow {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return power(x, y);
  }
};
struct Maximum {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x > y ? x : (x != x ? x : y);
  }
};
struct Minimum {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x < y ? x : (x != x ? x : y);
  }
};
struct Equal {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x == y);
  }
};
struct NotEqual {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x != y);
  }
};
struct Less {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x < y);
  }
};
struct LessEqual {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x <= y);
  }
};
struct Greater {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x > y);
  }
};
struct GreaterEqual {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return truth<V>(x >= y);
  }
};
struct LogicalAnd {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x == V{} ? V{} : truth<V>(y != V{});
  }
};
struct LogicalOr {
  template <class V>
  static POOLGRAD_HD V value(V x, V y) {
    return x == V{} ? truth<V>(y != V{}) : V{} + Scalar<V>(1);
  }
};

}  // namespace poolgrad::kernels::functors
