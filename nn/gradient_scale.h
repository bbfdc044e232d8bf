// What a step multiplies gradients by on their way into the parameters: clipping, averaging, the end of a loss scale.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::nn {

/// A number of the host, or one that a device has computed, which nobody waits for.
class GradientScale {
 public:
  GradientScale(double number = 1.0) : number_(number) {}
  /// (1 element) f64. Where it is NaN, the step leaves parameters and states as they are. Throws ShapeError,
  /// DTypeError.
  GradientScale(const Tensor& of_device);

  /// That of the host.
  double number() const { return number_; }
  /// Where it is on `device`, as long as this lives; nullptr: it is the host's.
  const double* on(Device device) const;

 private:
  double number_ = 1.0;
  mutable std::vector<Tensor> copies_;  // the first is the original
};

/// By what gradients of this norm are multiplied so that it is at most `limit`: min(1, limit / norm). A limit of 0
/// means no clipping. Throws ValueError for a negative limit.
double clip_scale(double norm, double limit);
/// The same number, to the bit, of an f64 norm on a device; NaN where the norm is not finite.
Tensor clip_scale(Argument norm, double limit);

}  // namespace poolgrad::nn
