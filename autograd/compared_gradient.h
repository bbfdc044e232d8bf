// The gradient of one input beside the differences that it is held against: what gradcheck decides by.
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
  bool exact;  // f64: nothing is allowed for rounding, so that a wrong gradient has no room
  double relative, absolute;
  bool grows;  // the absolute one, with the gradient up to 1: no small gradient is hidden by it

  Tolerance(const GradcheckOptions& options, double roundoff);

  /// Of an input whose largest numeric derivative is `steepest`.
  double absolute_beside(double steepest) const;
};

/// By element of the input, in row-major order.
struct ComparedGradient {
  /// Takes a central difference of step `epsilon` for each element.
  ComparedGradient(FiniteDifference& difference, std::size_t input, const Tensor& gradient, const Tolerance& tolerance,
                   double epsilon);

  double off(std::size_t e) const;
  double tolerated(std::size_t e) const;
  /// What is allowed for rounding besides.
  double rounding(std::size_t e) const { return exact ? 0.0 : slopes[e].rounding; }
  /// In parts of what is allowed.
  double excess(std::size_t e) const;
  bool agrees(std::size_t e) const { return excess(e) <= 1.0; }
  bool all_agree() const;
  /// Whether every difference may be rounding, and so may the gradient.
  bool is_lost() const;
  bool is_flat() const;

  /// Outputs in less than f64 are off by more than their own rounding where the function rounds on its way to them. By
  /// how much is measured at every element, for one answer alone may be small by chance.
  void allow_for_noise();
  /// Holds an element that does not agree against a difference without the third derivative, which steps leave there
  /// (Richardson's extrapolation), if it agrees with that.
  bool extrapolate(std::size_t e) { return extrapolate(e, epsilon); }
  /// The same with other steps, where nothing is allowed for rounding: smaller ones, down to what |x| does not widen,
  /// for functions that bend within it; and one so wide that rounding is less than what is tolerated, for derivatives
  /// that are small beside the outputs.
  void try_other_steps(std::size_t e);

  FiniteDifference& difference;
  std::size_t input;
  double epsilon;
  std::vector<double> values;
  std::vector<FiniteDifference::Derivative> slopes;
  bool exact;
  double relative, absolute;

 private:
  bool extrapolate(std::size_t e, double step);
  double noise(std::size_t e) const { return difference.noise(input, static_cast<std::int64_t>(e), epsilon); }
};

}  // namespace poolgrad
