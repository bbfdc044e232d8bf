// The scalar definition of every unary operation and its derivative, host and device alike. The same templates take
// float, double, int64_t (where the operation makes sense on integers) and vectors of these, so that the vectorised CPU
// path is this text too.
//
// A functor has value(x, a, b) and gradient(g, x, y, a, b) = g * d op / dx, where y = op(x); `reads_input` and
// `reads_output` say which of the two it looks at, `on_integers` whether value() exists for int64_t. Selections are
// written so that NaN stays NaN.
#pragma once

#include "kernels/definition/binary.h"

namespace poolgrad::kernels {
namespace functors {

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
}  // namespace functors

/// Calls f with the functor of `op`.
template <class F>
decltype(auto) with_functor(UnaryOp op, const F& f) {
  switch (op) {
    case UnaryOp::neg: return f(functors::Neg{});
    case UnaryOp::abs: return f(functors::Abs{});
    case UnaryOp::sign: return f(functors::Sign{});
    case UnaryOp::square: return f(functors::Square{});
    case UnaryOp::sqrt: return f(functors::Sqrt{});
    case UnaryOp::rsqrt: return f(functors::Rsqrt{});
    case UnaryOp::reciprocal: return f(functors::Reciprocal{});
    case UnaryOp::exp: return f(functors::Exp{});
    case UnaryOp::expm1: return f(functors::Expm1{});
    case UnaryOp::log: return f(functors::Log{});
    case UnaryOp::log1p: return f(functors::Log1p{});
    case UnaryOp::sin: return f(functors::Sin{});
    case UnaryOp::cos: return f(functors::Cos{});
    case UnaryOp::tanh: return f(functors::Tanh{});
    case UnaryOp::sigmoid: return f(functors::Sigmoid{});
    case UnaryOp::erf: return f(functors::Erf{});
    case UnaryOp::relu: return f(functors::Relu{});
    case UnaryOp::gelu: return f(functors::Gelu{});
    case UnaryOp::gelu_tanh: return f(functors::GeluTanh{});
    case UnaryOp::silu: return f(functors::Silu{});
    case UnaryOp::softplus: return f(functors::Softplus{});
    case UnaryOp::floor: return f(functors::Floor{});
    case UnaryOp::ceil: return f(functors::Ceil{});
    case UnaryOp::round: return f(functors::Round{});
    case UnaryOp::logical_not: return f(functors::LogicalNot{});
    case UnaryOp::is_nan: return f(functors::IsNan{});
    case UnaryOp::is_finite: return f(functors::IsFinite{});
    case UnaryOp::leaky_relu: return f(functors::LeakyRelu{});
    case UnaryOp::clamp: return f(functors::Clamp{});
    case UnaryOp::power: return f(functors::Power{});
    case UnaryOp::quotient: return f(functors::Quotient{});
    default: return f(functors::Affine{});
  }
}

/// out[i] = Op(x[i]) for the element with row-major index i; both views have the same shape and elements of type T.
/// What a GPU's thread does; faster CPU paths are tested against it.
template <class Op, class T>
struct PointwiseUnary {
  View out, x;
  T a{}, b{};

  POOLGRAD_HD void operator()(std::int64_t i) const {
    out.as<T>()[out.offset(i)] = Op::template value<T>(x.as<T>()[x.offset(i)], a, b);
  }
};

}  // namespace poolgrad::kernels
