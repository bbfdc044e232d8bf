#include "tensor/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "allocator/error.h"

namespace poolgrad {

namespace {

void check_shapes(const char* op, const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape())
    throw ShapeError("[" + std::string(op) + "] shapes differ: lhs " + describe(a) + ", rhs " + describe(b));
}

/// Calls f(x, y, difference) for every pair of elements as f64, the difference exact for integers.
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

}  // namespace

bool all_close(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan) {
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

bool bit_equal(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor x = a.on_host(), y = b.on_host();
  return std::memcmp(x.view().data, y.view().data, static_cast<std::size_t>(x.count()) * size_of(x.dtype())) == 0;
}

double max_difference(const Tensor& a, const Tensor& b) {
  check_shapes("max_difference", a, b);
  double largest = 0;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    difference = x == y && std::isinf(x) ? 0.0 : std::abs(difference);
    if (std::isnan(difference) || difference > largest) largest = std::isnan(largest) ? largest : difference;
  });
  return largest;
}

double relative_error(const Tensor& a, const Tensor& b) {
  check_shapes("relative_error", a, b);
  double scale = 0;  // keeps the squares away from overflow and underflow
  for_each_pair(a, b, [&](double x, double y, double) {
    if (std::isfinite(x) && std::isfinite(y)) scale = std::max({scale, std::abs(x), std::abs(y)});
  });
  if (scale == 0) scale = 1;
  double error = 0, norm = 0;
  for_each_pair(a, b, [&](double x, double y, double difference) {
    if (x != y) error += (difference / scale) * (difference / scale);
    norm += (y / scale) * (y / scale);
  });
  return error == 0 ? 0 : std::sqrt(error / norm);
}

}  // namespace poolgrad
