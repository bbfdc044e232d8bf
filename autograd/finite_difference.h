// Derivatives by differences: what gradcheck holds analytic gradients against.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Derivatives of <weights, f(x)> by one element of one input at a time. Works on a copy of the inputs that keeps their
/// strides (a dense one where elements of an input overlap); functions are run with grad mode off.
class FiniteDifference {
 public:
  /// `weights`: one per floating output of `function`, in order.
  FiniteDifference(const TensorFunction& function, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& weights);

  /// (f(x + h) - f(x - h)) / 2h for element `index` (row-major) of an input, h = epsilon * max(1, |x|).
  double central(std::size_t input, std::int64_t index, double epsilon);
  /// (f(x + h) - f(x)) / h and (f(x) - f(x - h)) / h. They disagree near a kink.
  std::pair<double, double> one_sided(std::size_t input, std::int64_t index, double epsilon);

 private:
  /// The function's outputs with that element set to `value`.
  std::vector<double> at(std::size_t input, std::int64_t index, double value);
  double weighted_difference(const std::vector<double>& high, const std::vector<double>& low) const;

  const TensorFunction& function_;
  std::vector<Tensor> point_;
  std::vector<double> weights_;
};

/// The floating ones of the outputs of a function.
std::vector<Tensor> floating(const std::vector<Tensor>& outputs);

}  // namespace poolgrad
