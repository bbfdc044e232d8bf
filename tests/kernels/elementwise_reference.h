// Naive definitions of the elementwise operations, independent of kernels/functors.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/functors/host_device.h"

namespace poolgrad::kernels::testing {

/// out[i] = Op(x[i]) for the element with row-major index i, as one GPU thread computes it. Both views have the same
/// shape and elements of type T.
template <template <class> class Op, class T>
struct PointwiseUnary {
  View out, x;
  T a{}, b{};

  POOLGRAD_HD void operator()(std::int64_t i) const {
    out.as<T>()[out.offset(i)] = Op<T>::value(x.as<T>()[x.offset(i)], a, b);
  }
};

using Real = long double;

/// An operation, its derivative, and the interval of random points. `on_integers`: defined for integers.
struct UnaryDefinition {
  UnaryOp op;
  Real (*value)(Real x, Real a, Real b);
  Real (*derivative)(Real x, Real a, Real b);
  double low = -3, high = 3;
  bool on_integers = false;
};

inline Real normal_cdf(Real x) { return std::erfc(-x / std::sqrt(Real(2))) / 2; }
inline Real normal_density(Real x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi_v<Real>); }
inline Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }
inline Real gelu_inner(Real x) { return std::sqrt(2 / std::numbers::pi_v<Real>) * (x + Real(0.044715) * x * x * x); }
inline Real sign_of(Real x) { return x > 0 ? 1 : (x < 0 ? -1 : 0); }

inline const std::vector<UnaryDefinition>& unary_definitions() {
  using R = Real;
  const auto zero = [](R, R, R) { return R(0); };
  static const std::vector<UnaryDefinition> all = {
      {UnaryOp::neg, [](R x, R, R) { return -x; }, [](R, R, R) { return R(-1); }, -3, 3, true},
      {UnaryOp::abs, [](R x, R, R) { return std::abs(x); }, [](R x, R, R) { return sign_of(x); }, -3, 3, true},
      {UnaryOp::sign, [](R x, R, R) { return sign_of(x); }, zero, -3, 3, true},
      {UnaryOp::square, [](R x, R, R) { return x * x; }, [](R x, R, R) { return 2 * x; }, -3, 3, true},
      {UnaryOp::sqrt, [](R x, R, R) { return std::sqrt(x); }, [](R x, R, R) { return 1 / (2 * std::sqrt(x)); }, 0.01,
       9},
      {UnaryOp::rsqrt, [](R x, R, R) { return 1 / std::sqrt(x); },
       [](R x, R, R) { return -1 / (2 * x * std::sqrt(x)); }, 0.1, 9},
      {UnaryOp::reciprocal, [](R x, R, R) { return 1 / x; }, [](R x, R, R) { return -1 / (x * x); }, 0.1, 5},
      {UnaryOp::exp, [](R x, R, R) { return std::exp(x); }, [](R x, R, R) { return std::exp(x); }},
      {UnaryOp::expm1, [](R x, R, R) { return std::expm1(x); }, [](R x, R, R) { return std::exp(x); }},
      {UnaryOp::log, [](R x, R, R) { return std::log(x); }, [](R x, R, R) { return 1 / x; }, 0.01, 20},
      {UnaryOp::log1p, [](R x, R, R) { return std::log1p(x); }, [](R x, R, R) { return 1 / (1 + x); }, -0.9, 9},
      {UnaryOp::sin, [](R x, R, R) { return std::sin(x); }, [](R x, R, R) { return std::cos(x); }, -9, 9},
      {UnaryOp::cos, [](R x, R, R) { return std::cos(x); }, [](R x, R, R) { return -std::sin(x); }, -9, 9},
      {UnaryOp::log2, [](R x, R, R) { return std::log2(x); },
       [](R x, R, R) { return 1 / (x * std::numbers::ln2_v<R>); }, 0.01, 20},
      {UnaryOp::log10, [](R x, R, R) { return std::log10(x); },
       [](R x, R, R) { return 1 / (x * std::numbers::ln10_v<R>); }, 0.01, 20},
      {UnaryOp::exp2, [](R x, R, R) { return std::exp2(x); },
       [](R x, R, R) { return std::exp2(x) * std::numbers::ln2_v<R>; }},
      {UnaryOp::tan, [](R x, R, R) { return std::tan(x); }, [](R x, R, R) { return 1 / (std::cos(x) * std::cos(x)); },
       -1.2, 1.2},
      {UnaryOp::asin, [](R x, R, R) { return std::asin(x); }, [](R x, R, R) { return 1 / std::sqrt(1 - x * x); }, -0.9,
       0.9},
      {UnaryOp::acos, [](R x, R, R) { return std::acos(x); }, [](R x, R, R) { return -1 / std::sqrt(1 - x * x); }, -0.9,
       0.9},
      {UnaryOp::atan, [](R x, R, R) { return std::atan(x); }, [](R x, R, R) { return 1 / (1 + x * x); }},
      {UnaryOp::sinh, [](R x, R, R) { return std::sinh(x); }, [](R x, R, R) { return std::cosh(x); }},
      {UnaryOp::cosh, [](R x, R, R) { return std::cosh(x); }, [](R x, R, R) { return std::sinh(x); }},
      {UnaryOp::tanh, [](R x, R, R) { return std::tanh(x); },
       [](R x, R, R) { return 1 - std::tanh(x) * std::tanh(x); }},
      {UnaryOp::sigmoid, [](R x, R, R) { return logistic(x); }, [](R x, R, R) { return logistic(x) * logistic(-x); }},
      {UnaryOp::erf, [](R x, R, R) { return std::erf(x); },
       [](R x, R, R) { return 2 / std::sqrt(std::numbers::pi_v<R>) * std::exp(-x * x); }},
      {UnaryOp::relu, [](R x, R, R) { return x > 0 ? x : R(0); }, [](R x, R, R) { return R(x > 0); }, -3, 3, true},
      {UnaryOp::gelu, [](R x, R, R) { return x * normal_cdf(x); },
       [](R x, R, R) { return normal_cdf(x) + x * normal_density(x); }},
      {UnaryOp::gelu_tanh, [](R x, R, R) { return x / 2 * (1 + std::tanh(gelu_inner(x))); },
       [](R x, R, R) {
         const R t = std::tanh(gelu_inner(x));
         const R slope = std::sqrt(2 / std::numbers::pi_v<R>) * (1 + 3 * R(0.044715) * x * x);
         return (1 + t) / 2 + x / 2 * (1 - t * t) * slope;
       }},
      {UnaryOp::silu, [](R x, R, R) { return x * logistic(x); },
       [](R x, R, R) { return logistic(x) + x * logistic(x) * logistic(-x); }},
      {UnaryOp::mish, [](R x, R, R) { return x * std::tanh(std::log1p(std::exp(x))); },
       [](R x, R, R) {
         const R t = std::tanh(std::log1p(std::exp(x)));
         return t + x * (1 - t * t) * logistic(x);
       }},
      {UnaryOp::elu, [](R x, R a, R) { return x > 0 ? x : a * std::expm1(x); },
       [](R x, R a, R) { return x > 0 ? R(1) : a * std::exp(x); }},
      {UnaryOp::softplus, [](R x, R, R) { return std::max(x, R(0)) + std::log1p(std::exp(-std::abs(x))); },
       [](R x, R, R) { return logistic(x); }},
      {UnaryOp::floor, [](R x, R, R) { return std::floor(x); }, zero, -3, 3, true},
      {UnaryOp::ceil, [](R x, R, R) { return std::ceil(x); }, zero, -3, 3, true},
      {UnaryOp::round, [](R x, R, R) { return std::nearbyint(x); }, zero, -3, 3, true},
      {UnaryOp::logical_not, [](R x, R, R) { return R(x == 0); }, zero, -3, 3, true},
      {UnaryOp::isnan, [](R x, R, R) { return R(std::isnan(x)); }, zero, -3, 3, true},
      {UnaryOp::isfinite, [](R x, R, R) { return R(std::isfinite(x)); }, zero, -3, 3, true},
      {UnaryOp::leaky_relu, [](R x, R a, R) { return x > 0 ? x : a * x; },
       [](R x, R a, R) { return x > 0 ? R(1) : a; }},
      {UnaryOp::clamp, [](R x, R a, R b) { return std::min(std::max(x, a), b); },
       [](R x, R a, R b) { return R(x >= a && x <= b); }, -6, 6, true},
      {UnaryOp::power, [](R x, R a, R) { return std::pow(x, a); }, [](R x, R a, R) { return a * std::pow(x, a - 1); },
       0.1, 5, true},
      {UnaryOp::affine, [](R x, R a, R b) { return a * x + b; }, [](R, R a, R) { return a; }, -3, 3, true},
      {UnaryOp::quotient, [](R x, R a, R) { return x / a; }, [](R, R a, R) { return 1 / a; }, -3, 3, true},
      {UnaryOp::power_of_two, [](R x, R, R) { return std::exp2(std::floor(std::log2(std::abs(x)))); }, zero, -9, 9}};
  return all;
}

struct BinaryDefinition {
  BinaryOp op;
  Real (*value)(Real x, Real y);
  bool truth = false;  // the result is bool
  bool on_integers = true;
};

inline const std::vector<BinaryDefinition>& binary_definitions() {
  using R = Real;
  static const std::vector<BinaryDefinition> all = {
      {BinaryOp::add, [](R x, R y) { return x + y; }},
      {BinaryOp::sub, [](R x, R y) { return x - y; }},
      {BinaryOp::mul, [](R x, R y) { return x * y; }},
      {BinaryOp::div, [](R x, R y) { return x / y; }},
      {BinaryOp::fmod, [](R x, R y) { return std::fmod(x, y); }},
      {BinaryOp::remainder, [](R x, R y) { return x - y * std::floor(x / y); }},
      {BinaryOp::atan2, [](R y, R x) { return std::atan2(y, x); }, false, false},
      {BinaryOp::pow, [](R x, R y) { return std::pow(x, y); }},
      {BinaryOp::maximum, [](R x, R y) { return x > y ? x : y; }},
      {BinaryOp::minimum, [](R x, R y) { return x < y ? x : y; }},
      {BinaryOp::eq, [](R x, R y) { return R(x == y); }, true},
      {BinaryOp::ne, [](R x, R y) { return R(x != y); }, true},
      {BinaryOp::lt, [](R x, R y) { return R(x < y); }, true},
      {BinaryOp::le, [](R x, R y) { return R(x <= y); }, true},
      {BinaryOp::gt, [](R x, R y) { return R(x > y); }, true},
      {BinaryOp::ge, [](R x, R y) { return R(x >= y); }, true},
      {BinaryOp::logical_and, [](R x, R y) { return R(x != 0 && y != 0); }, true},
      {BinaryOp::logical_or, [](R x, R y) { return R(x != 0 || y != 0); }, true},
      {BinaryOp::mul_no_nan, [](R x, R y) { return x * y; }},
      {BinaryOp::maximum_share, [](R x, R y) { return x > y ? R(1) : (x == y ? R(0.5) : R(0)); }},
      {BinaryOp::minimum_share, [](R x, R y) { return x < y ? R(1) : (x == y ? R(0.5) : R(0)); }}};
  return all;
}

}  // namespace poolgrad::kernels::testing
