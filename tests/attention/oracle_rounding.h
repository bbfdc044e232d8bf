// Error bound of attention with intermediate numbers rounded to a 16-bit type, as tensor cores need. Weights are
// rounded before the product with values, score gradients before the products with keys and queries. The stored out,
// from which score gradients are computed, and all results are rounded too.
#pragma once

#include <algorithm>

#include "tests/attention/oracle.h"

namespace poolgrad::attention::oracle {

/// The summed errors, in units of the type's relative error; includes bias and sinks.
struct Rounding {
  Array out;
  Gradients of;
};

/// `least` is the smallest normal number of the type; smaller numbers have the same absolute error.
inline Rounding rounding(const Problem& p, const Array& grad_out, const Array& grad_lse, double least) {
  const Result result = attend(p);
  Rounding error{result.out, gradients(p, grad_out, grad_lse)};
  for (Array* x : {&error.out, &error.of.q, &error.of.k, &error.of.v})
    for (double& value : x->data) value = std::abs(value);
  for (Array* x : {&error.of.bias, &error.of.sinks}) std::fill(x->data.begin(), x->data.end(), 0.0);
  const auto off = [least](double x) { return std::max(std::abs(x), least); };
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.heads(); ++h)
      for (std::int64_t i = 0; i < p.queries(); ++i) {
        const double lse = result.lse(0, b, h, i);
        if (std::isinf(lse)) continue;
        const std::int64_t g = p.kv_head(h), width = p.q.shape[3], value_width = p.v.shape[3];
        std::vector<double> weight(static_cast<std::size_t>(p.keys())), towards(weight), slope(weight);
        double mean = 0, of_mean = 0;  // of_mean: the error of <dO, out>
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const double m = p.count(b, h, i, j);
          if (m == 0) continue;
          const auto at = static_cast<std::size_t>(j);
          const double kept = p.kept(b, h, i, j);
          weight[at] = m * std::exp(p.score(b, h, i, j, &slope[at]) - lse);
          for (std::int64_t c = 0; c < value_width; ++c) {
            towards[at] += grad_out(b, i, h, c) * p.v(b, j, g, c) * kept;
            error.out(b, i, h, c) += off(weight[at] * kept) * std::abs(p.v(b, j, g, c));
            error.of.v(b, j, g, c) += off(weight[at] * kept) * std::abs(grad_out(b, i, h, c));
          }
          mean += weight[at] * towards[at];
        }
        for (std::int64_t c = 0; c < value_width; ++c)
          of_mean += std::abs(grad_out(b, i, h, c)) * error.out(b, i, h, c);
        const double through_lse = grad_lse.empty() ? 0 : grad_lse(0, b, h, i);
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (weight[at] == 0) continue;
          const double through_mean = weight[at] * of_mean,
                       score = off(weight[at] * (towards[at] - mean + through_lse) * slope[at]) +
                               through_mean * std::abs(slope[at]);
          if (!p.bias.empty()) error.of.bias(b, h, i, j) += through_mean;
          for (std::int64_t c = 0; c < width; ++c) {
            error.of.q(b, i, h, c) += score * std::abs(p.k(b, j, g, c));
            error.of.k(b, j, g, c) += score * std::abs(p.q(b, i, h, c));
          }
        }
        if (!p.sinks.empty()) error.of.sinks(0, 0, 0, h) += std::exp(p.sinks(0, 0, 0, h) - lse) * of_mean;
      }
  return error;
}

}  // namespace poolgrad::attention::oracle
