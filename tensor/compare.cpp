#include "tensor/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

#include "allocator/error.h"

namespace poolgrad {

namespace {

void check_shapes(const char* op, const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape())
    throw ShapeError("[" + std::string(op) + "] shapes differ: lhs " + describe(a) + ", rhs " + describe(b));
}

/// Calls f(x, y, difference) for every pair of elements as f64; the difference of integers is exact.
template <class F>
void for_each_pair(const Tensor& a, const Tensor& b, const F& f) {
  const auto run = [&f](const auto& x, const auto& y) {
    using Wide = std::conditional_t<std::is_integral_v<std::decay_t<decltype(x[0])>>, long double, double>;
    for (std::size_t i = 0; i < x.size(); ++i)
      f(static_cast<double>(x[i]), static_cast<double>(y[i]),
        static_cast<double>(static_cast<Wide>(x[i]) - static_cast<Wide>(y[i])));
  };
  if (is_floating(a.dtype()) || is_floating(b.dtype()))
    run(a.to_vector<double>(), b.to_vector<double>());
  else
    run(a.to_vector<std::int64_t>(), b.to_vector<std::int64_t>());
}

NearOptions tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return {1e-7, 1e-7};
    case DType::f32: return {1e-5, 1.3e-6};
    case DType::f16: return {1e-5, 1e-3};
    case DType::bf16: return {1e-5, 1.6e-2};
    default: return {0.0, 0.0};
  }
}

/// Returns one element as text in the precision of its dtype.
std::string element_text(const Tensor& x, std::int64_t number) {
  const auto i = static_cast<std::size_t>(number);
  if (!is_floating(x.dtype())) return fmt::format("{}", x.to_vector<std::int64_t>()[i]);
  return fmt::format("{:.{}g}", x.to_vector<double>()[i], x.dtype() == DType::f64 ? 17 : 9);
}

}  // namespace

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan, CallSite) {
  if (a.shape() != b.shape()) return false;
  bool close = true;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    if (std::isnan(x) || std::isnan(y))
      close &= equal_nan && std::isnan(x) && std::isnan(y);
    else if (std::isinf(x) || std::isinf(y))
      close &= x == y;
    else
      close &= std::abs(difference) <= absolute + relative * std::abs(y);
  });
  return close;
}

bool bit_equal(TensorArg a, const Tensor& b) {
  if (a->shape() != b.shape() || a->dtype() != b.dtype()) return false;
  const Tensor x = a->on_host(), y = b.on_host();
  return std::memcmp(x.view().data, y.view().data, bytes_of(x)) == 0;
}

double max_difference(TensorArg a, const Tensor& b) {
  check_shapes("max_difference", a, b);
  double largest = 0;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    difference = x == y && std::isinf(x) ? 0.0 : std::abs(difference);
    if (std::isnan(difference) || difference > largest) largest = std::isnan(largest) ? largest : difference;
  });
  return largest;
}

double relative_error(TensorArg a, const Tensor& b) {
  check_shapes("relative_error", a, b);
  double scale = 0;  // avoids overflow and underflow of the squares
  for_each_pair(a, b, [&](double x, double y, double) {
    if (std::isfinite(x) && std::isfinite(y)) scale = std::max({scale, std::abs(x), std::abs(y)});
  });
  if (scale == 0) scale = 1;
  double error = 0, norm = 0;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    if (x != y) error += (difference / scale) * (difference / scale);
    if (std::isfinite(y)) norm += (y / scale) * (y / scale);
  });
  return error == 0 ? 0 : std::sqrt(error / norm);
}

std::ostream& operator<<(std::ostream& stream, const Verdict& verdict) { return stream << verdict.text; }

Verdict tensors_near(const Tensor& a, const Tensor& b, const NearOptions& options, CallSite) {
  for (const Tensor* x : {&a, &b}) {
    const char* side = x == &a ? "lhs" : "rhs";
    if (!x->defined()) return {false, fmt::format("tensors cannot be compared: {} is undefined", side)};
    if (x->device().is_sim())
      return {false, fmt::format("tensors cannot be compared: {} {} has no numbers", side, describe(*x))};
  }
  if (a.shape() != b.shape())
    return {false, fmt::format("tensors differ in shape: lhs {}, rhs {}", describe(a), describe(b))};

  const NearOptions of_a = tolerance_of(a.dtype()), of_b = tolerance_of(b.dtype());
  const double absolute = options.absolute.value_or(std::max(*of_a.absolute, *of_b.absolute));
  const double relative = options.relative.value_or(std::max(*of_a.relative, *of_b.relative));
  if (!(absolute >= 0.0 && relative >= 0.0))
    return {false, fmt::format("tensors cannot be compared: tolerances are numbers from 0 on: {:g} and {:g}", absolute,
                               relative)};
  std::int64_t number = 0, wrong = 0, worst = 0;
  double worst_excess = -1.0, worst_difference = 0.0;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    const bool same = x == y ? difference == 0.0 || std::isinf(x) : options.equal_nan && std::isnan(x) && std::isnan(y);
    difference = same ? 0.0 : std::abs(difference);
    // Error relative to the tolerance. A non-finite number is near only an equal one.
    double excess = same ? 0.0 : difference / (absolute + relative * std::abs(y));
    if (!same && !(std::isfinite(x) && std::isfinite(y))) excess = std::numeric_limits<double>::infinity();
    if (excess > 1.0) ++wrong;
    if (excess > worst_excess) {
      worst_excess = excess;
      worst_difference = difference;
      worst = number;
    }
    ++number;
  });
  if (number == 0) return {true, "tensors are near: they are empty"};
  const std::string index = to_string(unravel(worst, a.shape()));
  if (wrong == 0)
    return {true, fmt::format("tensors are near: {} elements, largest difference {:.3g} at {}", number,
                              worst_difference, index)};
  return {false, fmt::format("tensors differ in {} of {} elements, most at {}\n"
                             "  lhs         {}  of {}\n"
                             "  rhs         {}  of {}\n"
                             "  difference  {:.3g}  (allowed: {:g} + {:g} |rhs|)",
                             wrong, number, index, element_text(a, worst), describe(a), element_text(b, worst),
                             describe(b), worst_difference, absolute, relative)};
}

Verdict tensors_near(const Tensor& a, const Tensor& b, double absolute, CallSite) {
  return tensors_near(a, b, {.absolute = absolute, .relative = 0.0});
}

}  // namespace poolgrad
