// What a reduction is, host and device alike: the functor of an operation folds value(x) of all elements with
// combine(), starting from `identity`. Numbers and vectors of them go through the same text.
#pragma once

#include <limits>

#include "kernels/definition/binary.h"
#include "kernels/reduce.h"

namespace poolgrad::kernels {
namespace reductions {

struct Sum {
  template <class T>
  static constexpr T identity = T{};
  template <class V>
  static POOLGRAD_HD V value(V x) {
    return x;
  }
  template <class V>
  static POOLGRAD_HD V combine(V a, V b) {
    return a + b;
  }
};
struct Product : Sum {
  template <class T>
  static constexpr T identity = T(1);
  template <class V>
  static POOLGRAD_HD V combine(V a, V b) {
    return a * b;
  }
};
struct Maximum : Sum {
  template <class T>
  static constexpr T identity = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                                     : std::numeric_limits<T>::min();
  template <class V>
  static POOLGRAD_HD V combine(V a, V b) {
    return functors::Maximum::value(a, b);
  }
};
struct Minimum : Sum {
  template <class T>
  static constexpr T identity = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                                     : std::numeric_limits<T>::max();
  template <class V>
  static POOLGRAD_HD V combine(V a, V b) {
    return functors::Minimum::value(a, b);
  }
};
struct Any : Maximum {
  template <class T>
  static constexpr T identity = T{};
  template <class V>
  static POOLGRAD_HD V value(V x) {
    return functors::truth<V>(x != V{});
  }
};
struct All : Minimum {
  template <class T>
  static constexpr T identity = T(1);
  template <class V>
  static POOLGRAD_HD V value(V x) {
    return functors::truth<V>(x != V{});
  }
};

}  // namespace reductions

/// Calls f with the functor of `op`; that of a mean is the sum.
template <class F>
decltype(auto) with_functor(ReduceOp op, const F& f) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean: return f(reductions::Sum{});
    case ReduceOp::product: return f(reductions::Product{});
    case ReduceOp::maximum: return f(reductions::Maximum{});
    case ReduceOp::minimum: return f(reductions::Minimum{});
    case ReduceOp::any: return f(reductions::Any{});
    default: return f(reductions::All{});
  }
}

}  // namespace poolgrad::kernels
