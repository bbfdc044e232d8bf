// a + b, a - b, a * b, a / b and friends, with NumPy broadcasting; the gradient of an operand is summed over what
// broadcasting added. Operands share dtype and device (DTypeError, DeviceError); every dtype but bool. Scalars (C++
// doubles) never change the dtype: with integers they must be whole numbers (ValueError).
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// Elementwise; ShapeError where the shapes do not broadcast.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
/// Integers divide like C, x / 0 is 0.
Tensor div(const Tensor& a, const Tensor& b);
/// a^b; the gradient with respect to b is 0 where a is 0, and with respect to a where b is 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, double exponent);
/// Ties give half the gradient to each side.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// scale * x + shift, without a tensor for either; all operators with a double are this one, but for x / a, which
/// divides.
Tensor affine(const Tensor& x, double scale, double shift);

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(const Tensor& a, double b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(const Tensor& a, double b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(const Tensor& a, double b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& x);

/// Comparisons give bool tensors and carry no gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

/// Sums `x` over the dimensions that broadcasting `shape` to x.shape() added: the gradient of expand. x itself where
/// the shapes are equal.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace poolgrad
