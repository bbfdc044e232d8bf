// Derivatives by finite differences. gradcheck compares analytic gradients with them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Derivatives of <weights, f(x)> by one element of one input at a time. Functions run with grad mode off. An element
/// is written in place and restored afterwards. So the function sees the step even if it holds the tensor itself, as a
/// module holds its parameters. Inputs with overlapping memory would move together: the function gets copies of them,
/// with the strides of the input if possible.
class FiniteDifference {
 public:
  struct Derivative {
    double value;
    double rounding;  // how far off the rounding of the outputs that moved may put it: half a unit in the last place in
                      // f16 and bf16, two in f32 and f64
    double hidden;    // the same of all outputs: its largest value if no output changes
    double distance;  // between the two points, 2h
  };

  /// `weights` has one tensor per floating output of `function`, in order.
  FiniteDifference(const TensorFunction& function, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& weights);

  /// Returns (f(x + h) - f(x - h)) / 2h for element `index` (row-major) of an input, with h = epsilon * max(1, |x|).
  /// Both points are rounded to the dtype of the input. `depends` flags output numbers that depend on the element. They
  /// count as moved even if rounding hides the change.
  Derivative central(std::size_t input, std::int64_t index, double epsilon, const std::vector<bool>& depends = {});
  /// Returns the least epsilon with a step of 2^10 f64 numbers at the element, at least 1e-16.
  double narrowest_step(std::size_t input, std::int64_t index) const;
  /// Returns (f(x + h) - f(x)) / h and (f(x) - f(x - h)) / h. They disagree near a kink.
  std::pair<double, double> one_sided(std::size_t input, std::int64_t index, double epsilon);
  /// Calls `visit` with the inputs, first with the element at x + h, then at x - h. Grad mode is off.
  void visit_both_sides(std::size_t input, std::int64_t index, double epsilon,
                        const std::function<void(const std::vector<Tensor>&)>& visit);
  /// Returns the inputs of the function.
  const std::vector<Tensor>& point() const { return point_; }
  /// Returns the variance of <weights, f(x)> near the element by rounding inside the function, beyond the rounding of
  /// its outputs; 0 if that alone can explain it. Uses fourth differences of nine points between those of central() (R.
  /// W. Hamming, Introduction to Applied Numerical Analysis, 1971; J. J. More and S. M. Wild, Estimating Computational
  /// Noise, 2011).
  double noise(std::size_t input, std::int64_t index, double epsilon);

 private:
  struct Sample {
    double x;  // rounded to the dtype
    std::vector<double> outputs;
  };
  /// Returns the outputs with that element set to `value`.
  Sample at(std::size_t input, std::int64_t index, double value);
  /// Returns <weights, high - low>.
  double rise(const Sample& high, const Sample& low) const;
  double slope(const Sample& high, const Sample& low) const;

  const TensorFunction& function_;
  std::vector<Tensor> point_;
  std::vector<double> weights_, roundoff_;  // for every output number
};

/// Returns the floating outputs of a function.
std::vector<Tensor> floating(const std::vector<Tensor>& outputs);
/// Returns half the distance from 1 to the next number of a floating dtype.
double unit_roundoff(DType dtype);

}  // namespace poolgrad
