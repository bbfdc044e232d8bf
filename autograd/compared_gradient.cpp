#include "autograd/compared_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace poolgrad {
namespace {

constexpr double deviations = 6.0;  // standard deviations of rounding; a larger difference is an error

}  // namespace

Tolerance::Tolerance(const GradcheckOptions& options, double roundoff) {
  exact = roundoff <= unit_roundoff(DType::f64);
  const double left = std::pow(roundoff, 2.0 / 3.0);
  relative = options.relative.value_or(exact ? 1e-5 : 4.0 * left);
  absolute = options.absolute.value_or(exact ? 1e-7 : left);
  grows = !options.absolute;
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
      steps(values.size(), step),
      exact(tolerance.exact),
      grows(tolerance.grows),
      relative(tolerance.relative) {
  double steepest = 0.0;
  for (std::size_t e = 0; e < values.size(); ++e) {
    slopes.push_back(difference.central(input, static_cast<std::int64_t>(e), epsilon));
    if (exact) slopes.back().rounding = 0.0;
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

bool ComparedGradient::is_lost(std::size_t e) const {
  const double hidden = slopes[e].hidden;
  return hidden > 0.0 && std::isfinite(hidden) && std::abs(slopes[e].value) <= hidden && std::abs(values[e]) <= hidden;
}

bool ComparedGradient::is_lost() const {
  for (std::size_t e = 0; e < values.size(); ++e)
    if (!is_lost(e) || std::abs(slopes[e].value) > slopes[e].rounding) return false;
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

void ComparedGradient::extrapolate(std::size_t e) {
  const auto central = [&](double width) {
    return difference.central(input, static_cast<std::int64_t>(e), width).value;
  };
  FiniteDifference::Derivative& slope = slopes[e];
  const FiniteDifference::Derivative before = slope;
  slope.value = (4.0 * central(epsilon) - central(2.0 * epsilon)) / 3.0;
  slope.rounding = 1.5 * before.rounding;  // (4 + 1 / 2) / 3
  if (!agrees(e)) slope = before;
}

void ComparedGradient::search_step(std::size_t e) {
  constexpr double ratio = 4.0, widest = 1.0, trusted = 1e-3;
  const auto element = static_cast<std::int64_t>(e);
  const auto central = [&](double step) { return difference.central(input, element, step); };
  const auto beside = [&](const FiniteDifference::Derivative& slope) {
    return std::max(std::abs(slope.value), std::abs(values[e]));
  };
  const FiniteDifference::Derivative first = slopes[e], wider = central(epsilon * ratio),
                                     narrower = central(epsilon / ratio);
  const double apart = std::max(std::abs(wider.value - first.value), std::abs(narrower.value - first.value));
  if (apart <= 1e-7 * beside(first) + 10.0 * narrower.hidden &&
      off(e) > 100.0 * (apart + tolerated(e) + narrower.hidden))
    return;

  // Steps grow from narrow to wide. Wide steps may leave the domain of the function, so the search stops when they no
  // longer help.
  const double narrowest = is_lost(e) ? epsilon / ratio : difference.narrowest_step(input, element);
  std::vector<double> tried{epsilon};
  while (tried.back() / ratio >= narrowest) tried.push_back(tried.back() / ratio);
  std::ranges::reverse(tried);
  std::vector<FiniteDifference::Derivative> found;
  for (const double step : tried) found.push_back(central(step));
  double least = std::numeric_limits<double>::infinity();
  int worse = 0;
  for (std::size_t k = 1; k < found.size() && worse < 3; ++k) {
    if (k + 1 == found.size() && tried.back() * ratio <= widest) {
      tried.push_back(tried.back() * ratio);
      found.push_back(central(tried.back()));
    }
    if (k + 1 == found.size()) break;
    const double disagreement =
        std::max(std::abs(found[k - 1].value - found[k].value), std::abs(found[k + 1].value - found[k].value));
    const double uncertain = disagreement + found[k].hidden;
    if (!(uncertain < least)) {  // also if it is NaN
      if (tried[k] >= epsilon) ++worse;
      continue;
    }
    worse = 0;
    least = uncertain;
    slopes[e] = found[k];
    slopes[e].value += (found[k].value - found[k + 1].value) / (ratio * ratio - 1.0);
    slopes[e].rounding = grows ? found[k].hidden + std::min(disagreement, trusted * beside(slopes[e])) : 0.0;
    steps[e] = tried[k];
  }
}

}  // namespace poolgrad
