// Definitions of reductions for host and device. The functor of an operation folds value(x) of all elements with
// combine(), starting from `identity`. The same code serves numbers and vectors.
#pragma once

#include <limits>

#include "kernels/functors/elementwise.h"
#include "kernels/reduce.h"

namespace poolgrad::kernels {
namespace reductions {

struct Sum {
  template <class T>
  static constexpr T identity = T{};
  static POOLGRAD_HD auto value(auto x) { return x; }
  static POOLGRAD_HD auto combine(auto a, auto b) { return functors::Add<decltype(a)>::value(a, b); }
};
struct Product : Sum {
  template <class T>
  static constexpr T identity = T(1);
  static POOLGRAD_HD auto combine(auto a, auto b) { return functors::Mul<decltype(a)>::value(a, b); }
};
struct Maximum : Sum {
  template <class T>
  static constexpr T identity = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                                     : std::numeric_limits<T>::min();
  static POOLGRAD_HD auto combine(auto a, auto b) { return functors::Maximum<decltype(a)>::value(a, b); }
};
struct Minimum : Sum {
  template <class T>
  static constexpr T identity = std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity()
                                                                     : std::numeric_limits<T>::max();
  static POOLGRAD_HD auto combine(auto a, auto b) { return functors::Minimum<decltype(a)>::value(a, b); }
};
struct Any : Maximum {
  template <class T>
  static constexpr T identity = T{};
  static POOLGRAD_HD auto value(auto x) { return functors::truth<decltype(x)>(x != decltype(x){}); }
};
struct All : Minimum {
  template <class T>
  static constexpr T identity = T(1);
  static POOLGRAD_HD auto value(auto x) { return functors::truth<decltype(x)>(x != decltype(x){}); }
};

}  // namespace reductions

/// Calls f with the functor of `op`; a mean uses that of the sum.
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
