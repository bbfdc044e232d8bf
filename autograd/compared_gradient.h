// Compares the gradient of one input with differences, element by element. gradcheck decides by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autograd/finite_difference.h"
#include "autograd/gradcheck.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Options for tensors of one unit roundoff.
struct Tolerance {
  bool exact;  // f64
  double relative, absolute;
  bool grows;  // the absolute tolerance grows with the gradient up to 1, so that it hides no small gradient

  Tolerance(const GradcheckOptions& options, double roundoff);

  /// The absolute tolerance of an input whose largest derivative is `steepest`.
  double absolute_beside(double steepest) const;
};

/// By element of the input, in row-major order.
struct ComparedGradient {
  /// Takes a central difference of step `epsilon` for each element.
  ComparedGradient(FiniteDifference& difference, std::size_t input, const Tensor& gradient, const Tolerance& tolerance,
                   double epsilon);

  double off(std::size_t e) const;
  double tolerated(std::size_t e) const;
  /// The allowance for rounding. In f64 it is 0 until search_step() chooses a step.
  double rounding(std::size_t e) const { return slopes[e].rounding; }
  /// The error in parts of the allowance.
  double excess(std::size_t e) const;
  bool agrees(std::size_t e) const { return excess(e) <= 1.0; }
  bool all_agree() const;
  /// Whether the difference and the gradient of an element may both be the rounding of outputs.
  bool is_lost(std::size_t e) const;
  /// The same of all elements.
  bool is_lost() const;
  bool is_flat() const;

  /// Outputs in less than f64 are off by more than their own rounding where the function rounds on its way to them. By
  /// how much is measured at every element, for one answer alone may be small by chance.
  void allow_for_noise();
  /// Holds an element that does not agree against a difference without the third derivative, which steps leave there
  /// (Richardson's extrapolation), if it agrees with that.
  void extrapolate(std::size_t e);
  /// For f64: tries steps from 1e-16 to 1 and takes the difference that those of neighboring steps confirm best,
  /// without its third derivative. The step so follows the function's own scale: narrow where it bends or has a kink
  /// nearby, wide where its slope is small beside its values. Allows for the rounding of outputs, and for the
  /// disagreement of neighbors up to a thousandth of the slope, unless the options have an absolute tolerance. Ends
  /// early where the first differences agree and the gradient does not.
  void search_step(std::size_t e);

  FiniteDifference& difference;
  std::size_t input;
  double epsilon;
  std::vector<double> values;
  std::vector<FiniteDifference::Derivative> slopes;
  std::vector<double> steps;  // of the differences in `slopes`, as epsilon
  bool exact, grows;
  double relative, absolute;

 private:
  double noise(std::size_t e) const { return difference.noise(input, static_cast<std::int64_t>(e), epsilon); }
};

}  // namespace poolgrad
