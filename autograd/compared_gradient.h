// Compares the gradient of one input with finite differences, element by element. gradcheck uses the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autograd/finite_difference.h"
#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Tolerances for tensors of one unit roundoff.
struct Tolerance {
  bool exact;  // f64
  double relative, absolute;
  bool grows;  // scales the absolute tolerance by gradients below 1, so that it hides no small gradient

  Tolerance(const GradcheckOptions& options, double roundoff);

  /// Returns the absolute tolerance of an input with the largest derivative `steepest`.
  double absolute_beside(double steepest) const;
};

/// The comparison by element of the input, in row-major order.
struct ComparedGradient {
  /// Takes a central difference of step `epsilon` for each element.
  ComparedGradient(FiniteDifference& difference, std::size_t input, const Tensor& gradient, const Tolerance& tolerance,
                   double epsilon);

  double off(std::size_t e) const;
  double tolerated(std::size_t e) const;
  /// Returns the allowance for rounding. In f64 it is 0 until search_step() chooses a step.
  double rounding(std::size_t e) const { return slopes[e].rounding; }
  /// Returns the error divided by the allowance.
  double excess(std::size_t e) const;
  bool agrees(std::size_t e) const { return excess(e) <= 1.0; }
  bool all_agree() const;
  /// Returns whether the difference and the gradient of an element may both be rounding of outputs.
  bool is_lost(std::size_t e) const;
  /// The same for all elements.
  bool is_lost() const;
  bool is_flat() const;

  /// Below f64, rounding inside the function may exceed the rounding of its outputs. Measures it at every element,
  /// because a single estimate may be small by chance.
  void allow_for_noise();
  /// Replaces the difference of a failing element by one without the third derivative (Richardson's extrapolation), if
  /// the gradient agrees with that.
  void extrapolate(std::size_t e);
  /// For f64: tries steps from 1e-16 to 1 and takes the difference that neighboring steps confirm best, without its
  /// third derivative. The step so follows the scale of the function: narrow near curvature or kinks, wide for a small
  /// slope beside large values. Allows for the rounding of outputs and, unless the options have an absolute tolerance,
  /// for disagreement of neighbors up to a thousandth of the slope. Stops early if the first differences agree with
  /// each other but not with the gradient.
  void search_step(std::size_t e);

  FiniteDifference& difference;
  std::size_t input;
  double epsilon;
  std::vector<double> values;
  std::vector<FiniteDifference::Derivative> slopes;
  std::vector<double> steps;  // epsilon of each difference in `slopes`
  bool exact, grows;
  double relative, absolute;

 private:
  double noise(std::size_t e) const { return difference.noise(input, static_cast<std::int64_t>(e), epsilon); }
};

}  // namespace poolgrad
