// Comparison of tensors, for tests and reports. Mixed dtypes and devices are compared in f64 on the CPU.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// Same shape and |a - b| <= absolute + relative * |b| everywhere; equal infinities are close, and NaN is equal only to
/// NaN when `equal_nan`. Integers compare exactly before the tolerance is looked at.
bool all_close(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8,
               bool equal_nan = false);
/// Same shape, dtype and bits.
bool bit_equal(const Tensor& a, const Tensor& b);
/// max |a - b|, 0 for empty tensors; NaN where either has one. Throws ShapeError for different shapes.
double max_difference(const Tensor& a, const Tensor& b);
/// ||a - b|| / ||b|| in f64, 0 for equal tensors; NaN never passes a comparison. Throws ShapeError for different
/// shapes.
double relative_error(const Tensor& a, const Tensor& b);

}  // namespace poolgrad
