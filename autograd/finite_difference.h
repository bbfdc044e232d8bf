// Derivatives by differences. gradcheck compares analytic gradients with them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Derivatives of <weights, f(x)> by one element of one input at a time; functions are run with grad mode off. An
/// element is written where it lies and put back afterwards, so that the function sees the step whether it reads its
/// argument or, like a module its parameters, holds the tensor itself. Inputs with elements in the same place of memory
/// would move together: of those the function is given copies, with the strides of the input where these allow it.
class FiniteDifference {
 public:
  struct Derivative {
    double value;
    double rounding;  // how far off the rounding of the outputs that moved may put it: half a unit in the last place in
                      // f16 and bf16, two in f32 and f64
    double hidden;    // the same of all outputs: its largest value if no output changes
    double distance;  // of the two points, 2h
  };

  /// `weights`: one per floating output of `function`, in order.
  FiniteDifference(const TensorFunction& function, const std::vector<Tensor>& inputs,
                   const std::vector<Tensor>& weights);

  /// (f(x + h) - f(x - h)) / 2h for element `index` (row-major) of an input, h = epsilon * max(1, |x|); both points as
  /// the input's dtype holds them. Where `depends` says of a number that the function gives that it depends on the
  /// element, it is taken for one that moved: rounding may have hidden it.
  Derivative central(std::size_t input, std::int64_t index, double epsilon, const std::vector<bool>& depends = {});
  /// The least epsilon whose step reaches 2^10 numbers beyond the element in f64, and at least 1e-16.
  double narrowest_step(std::size_t input, std::int64_t index) const;
  /// (f(x + h) - f(x)) / h and (f(x) - f(x - h)) / h. They disagree near a kink.
  std::pair<double, double> one_sided(std::size_t input, std::int64_t index, double epsilon);
  /// Calls `visit` with the inputs, that element at x + h and then at x - h. Grad mode is off.
  void visit_both_sides(std::size_t input, std::int64_t index, double epsilon,
                        const std::function<void(const std::vector<Tensor>&)>& visit);
  /// The inputs that the function is given.
  const std::vector<Tensor>& point() const { return point_; }
  /// The variance of <weights, f(x)> near the element by rounding inside the function, beyond the rounding of its
  /// outputs; 0 if that alone can explain it. From fourth differences of nine points between those of central() (R. W.
  /// Hamming, Introduction to Applied Numerical Analysis, 1971; J. J. More and S. M. Wild, Estimating Computational
  /// Noise, 2011).
  double noise(std::size_t input, std::int64_t index, double epsilon);

 private:
  struct Sample {
    double x;  // rounded to the dtype
    std::vector<double> outputs;
  };
  /// The function's outputs with that element set to `value`.
  Sample at(std::size_t input, std::int64_t index, double value);
  /// <weights, high - low>.
  double rise(const Sample& high, const Sample& low) const;
  double slope(const Sample& high, const Sample& low) const;

  const TensorFunction& function_;
  std::vector<Tensor> point_;
  std::vector<double> weights_, roundoff_;  // of every number that the function gives
};

/// The floating ones of the outputs of a function.
std::vector<Tensor> floating(const std::vector<Tensor>& outputs);
/// Half the distance from 1 to the next number of a floating dtype.
double unit_roundoff(DType dtype);

}  // namespace poolgrad
