// The scalar definition of every binary operation, host and device alike: value(x, y) for float, double, int64_t and
// vectors of these. Selections are written so that NaN stays NaN.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/definition/host_device.h"
#include "kernels/definition/math.h"
#include "kernels/elementwise.h"

namespace poolgrad::kernels {
namespace functors {

template <class V>
using Scalar = typename Math<V>::Scalar;

template <class V>
inline constexpr bool is_integer = std::is_same_v<V, std::int64_t>;

/// Truth values are 0 and 1 of the operand's type.
template <class V, class Condition>
POOLGRAD_HD V truth(Condition condition) {
  const V zero{}, one = zero + Scalar<V>(1);
  return condition ? one : zero;
}
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

}  // namespace functors

/// Calls f with the functor of `op`.
template <class F>
decltype(auto) with_functor(BinaryOp op, const F& f) {
  switch (op) {
    case BinaryOp::add: return f(functors::Add{});
    case BinaryOp::sub: return f(functors::Sub{});
    case BinaryOp::mul: return f(functors::Mul{});
    case BinaryOp::div: return f(functors::Div{});
    case BinaryOp::pow: return f(functors::Pow{});
    case BinaryOp::maximum: return f(functors::Maximum{});
    case BinaryOp::minimum: return f(functors::Minimum{});
    case BinaryOp::eq: return f(functors::Equal{});
    case BinaryOp::ne: return f(functors::NotEqual{});
    case BinaryOp::lt: return f(functors::Less{});
    case BinaryOp::le: return f(functors::LessEqual{});
    case BinaryOp::gt: return f(functors::Greater{});
    case BinaryOp::ge: return f(functors::GreaterEqual{});
    case BinaryOp::logical_and: return f(functors::LogicalAnd{});
    default: return f(functors::LogicalOr{});
  }
}

}  // namespace poolgrad::kernels
