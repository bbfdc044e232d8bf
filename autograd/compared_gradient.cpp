#include "autograd/compared_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace poolgrad {
namespace {

constexpr double deviations = 6.0;  // of what a function rounds: more is not to be expected

}  // namespace

Tolerance::Tolerance(const GradcheckOptions& options, double roundoff) {
  exact = roundoff <= unit_roundoff(DType::f64);
  const double left = std::pow(roundoff, 2.0 / 3.0);
  relative = options.relative.value_or(exact ? 1e-5 : 4.0 * left);
  absolute = options.absolute.value_or(exact ? 1e-7 : left);
  grows = !exact && !options.absolute;
}

double Tolerance::absolute_beside(double steepest) const {
  return grows ? absolute * std::min(1.0, steepest) : absolute;
}

ComparedGradient::ComparedGradient(FiniteDifference& by, std::size_t of_input, const Tensor& gradient,
                                   const Tolerance& tolerance, double step)
    : difference(by),
      input(of_input),
      epsilon(step),
      values(gradient.to_vector<double>()),
      exact(tolerance.exact),
      relative(tolerance.relative) {
  double steepest = 0.0;
  for (std::size_t e = 0; e < values.size(); ++e) {
    slopes.push_back(difference.central(input, static_cast<std::int64_t>(e), epsilon));
    steepest = std::max(steepest, std::abs(slopes.back().value));
  }
  absolute = tolerance.absolute_beside(steepest);
}

double ComparedGradient::off(std::size_t e) const { return std::abs(values[e] - slopes[e].value); }

double ComparedGradient::tolerated(std::size_t e) const { return absolute + relative * std::abs(slopes[e].value); }

double ComparedGradient::excess(std::size_t e) const {
  if (values[e] == slopes[e].value) return 0.0;
  const double parts = off(e) / (tolerated(e) + rounding(e));
  return std::isnan(parts) ? std::numeric_limits<double>::infinity() : parts;
}

bool ComparedGradient::all_agree() const {
  for (std::size_t e = 0; e < values.size(); ++e)
    if (!agrees(e)) return false;
  return true;
}

bool ComparedGradient::is_lost() const {
  for (std::size_t e = 0; e < values.size(); ++e) {
    const auto& [numeric, rounding, hidden, distance] = slopes[e];
    if (!(hidden > 0.0 && std::abs(numeric) <= rounding && std::abs(values[e]) <= hidden)) return false;
  }
  return !values.empty();
}

bool ComparedGradient::is_flat() const {
  for (std::size_t e = 0; e < values.size(); ++e)
    if (slopes[e].value != 0.0 || values[e] != 0.0) return false;
  return true;
}

void ComparedGradient::allow_for_noise() {
  double variance = 0.0;
  for (std::size_t e = 0; e < values.size(); ++e) variance += noise(e);
  variance /= static_cast<double>(values.size());
  if (!(variance > 0.0)) return;
  for (auto& [numeric, rounding, hidden, distance] : slopes) {
    rounding += deviations * std::sqrt(2.0 * variance) / distance;
    hidden = std::max(hidden, rounding);
  }
}

bool ComparedGradient::extrapolate(std::size_t e, double step) {
  const auto central = [&](double width) {
    return difference.central(input, static_cast<std::int64_t>(e), width).value;
  };
  FiniteDifference::Derivative& slope = slopes[e];
  const FiniteDifference::Derivative before = slope;
  slope.value = (4.0 * central(step) - central(2.0 * step)) / 3.0;
  slope.rounding = 1.5 * before.rounding;  // (4 + 1 / 2) / 3
  if (agrees(e)) return true;
  slope = before;
  return false;
}

void ComparedGradient::try_other_steps(std::size_t e) {
  constexpr double widest = 1.0;
  const double distance = slopes[e].distance, narrow = epsilon * (2.0 * epsilon / distance);
  for (double step = epsilon; step > 0.5 * narrow; step /= 8.0)
    if (extrapolate(e, step)) return;
  const double rounded = slopes[e].rounding + deviations * std::sqrt(2.0 * noise(e)) / distance;
  const double wide = std::min(epsilon * rounded / tolerated(e), widest);
  if (wide > epsilon) extrapolate(e, wide);
}

}  // namespace poolgrad
