// The factor by which a step multiplies gradients: clipping, averaging, and the division by a loss scale.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::nn {

/// A number on the host, or one on a device, for which the host does not wait. NaN means that the step is skipped.
class GradientScale {
 public:
  GradientScale(double number = 1.0) : number_(number) {}
  /// (1 element) f64. Throws ShapeError, DTypeError.
  GradientScale(const Tensor& of_device);

  /// Returns the number on the host.
  double number() const { return number_; }
  /// Returns the address of the number on `device`, valid as long as this object lives; nullptr if the number is on the
  /// host.
  const double* on(Device device) const;

 private:
  double number_ = 1.0;
  mutable std::vector<Tensor> copies_;  // the first is the original
};

/// Returns the square root of the sum of squares of all gradients, added in f64: infinity for f64 gradients beyond
/// 1e154, and then the step is skipped. Parameters without a gradient count as 0. Returns 0 on sim.
double gradient_norm(const std::vector<Tensor>& parameters, CallSite = {});
/// Returns the same as a one-element f64 tensor on the device of the parameters, without waiting for it.
Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters, CallSite = {});

/// Returns min(1, limit / norm), the factor that clips gradients of this norm at `limit`; 0 is no limit. Returns NaN,
/// which skips the step, for a norm that is infinite or NaN. Throws ValueError for a negative limit.
double clip_scale(double norm, double limit);
/// Returns the same number, bit for bit, from an f64 norm on a device.
Tensor clip_scale(TensorArg norm, double limit);

}  // namespace poolgrad::nn
