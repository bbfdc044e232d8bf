// Arithmetic and comparisons with NumPy broadcasting. The gradient of an operand is summed over the dimensions that
// broadcasting added. Operands share dtype and device (DTypeError, DeviceError). Every dtype but bool is allowed.
// Scalars (C++ doubles) never change the dtype. Beside integers they must be whole numbers (ValueError). In comparisons
// and extrema they are first rounded to the dtype.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// Elementwise. Throws ShapeError if the shapes do not broadcast.
Tensor add(TensorArg a, const Tensor& b);
Tensor sub(TensorArg a, const Tensor& b);
Tensor mul(TensorArg a, const Tensor& b);
/// Integers divide as in C; x / 0 is 0.
Tensor div(TensorArg a, const Tensor& b);
/// Returns a^b. The gradient of b is 0 where a is 0; the gradient of a is 0 where b is 0.
Tensor pow(TensorArg a, const Tensor& b);
Tensor pow(TensorArg a, double exponent);
Tensor pow(double base, TensorArg exponent);
/// Returns the angle of the point (x, y), in (-pi, pi]. Floating dtypes. The gradient is 0 at the origin, as in
/// PyTorch.
Tensor atan2(TensorArg y, const Tensor& x);
/// Return the remainder of a / b. fmod has the sign of a, as in C; remainder has the sign of b, as in Python. The
/// gradient of b is minus the integer quotient, a constant. For integers, the remainder of a / 0 is a.
Tensor fmod(TensorArg a, const Tensor& b);
Tensor fmod(TensorArg a, double b);
Tensor remainder(TensorArg a, const Tensor& b);
Tensor remainder(TensorArg a, double b);
/// The gradient goes to the operand that is the result, also for NaN. In a tie each side gets half.
Tensor maximum(TensorArg a, const Tensor& b);
Tensor maximum(TensorArg a, double b);
Tensor maximum(double a, TensorArg b);
Tensor minimum(TensorArg a, const Tensor& b);
Tensor minimum(TensorArg a, double b);
Tensor minimum(double a, TensorArg b);
/// Returns scale * x + shift in one pass. Operators with a double use it, except x / a, which divides.
Tensor affine(TensorArg x, double scale, double shift);

Tensor operator+(TensorArg a, const Tensor& b);
Tensor operator-(TensorArg a, const Tensor& b);
Tensor operator*(TensorArg a, const Tensor& b);
Tensor operator/(TensorArg a, const Tensor& b);
Tensor operator+(TensorArg a, double b);
Tensor operator+(double a, TensorArg b);
Tensor operator-(TensorArg a, double b);
Tensor operator-(double a, TensorArg b);
Tensor operator*(TensorArg a, double b);
Tensor operator*(double a, TensorArg b);
Tensor operator/(TensorArg a, double b);
Tensor operator/(double a, TensorArg b);
Tensor operator-(TensorArg x);

/// Assigns x + y to x, in the shape and dtype of x; y broadcasts. Returns x. If nothing is recorded, it writes in
/// place: all views of x change, and a backward that saved x throws because its version changed. If the sum is
/// recorded, all handles of this tensor refer to the new result. Throws Error if a gradient or a view would be lost: if
/// x is a leaf that requires grad, or if a view or a backward shares its memory. The handle may be const or a
/// temporary: x[0] += 1.0.
Tensor operator+=(TensorArg x, const Tensor& y);
Tensor operator-=(TensorArg x, const Tensor& y);
Tensor operator*=(TensorArg x, const Tensor& y);
Tensor operator/=(TensorArg x, const Tensor& y);
Tensor operator+=(TensorArg x, double y);
Tensor operator-=(TensorArg x, double y);
Tensor operator*=(TensorArg x, double y);
Tensor operator/=(TensorArg x, double y);

/// Elementwise comparisons. They return bool tensors without gradient. (Tensor::is_same compares handles.)
Tensor equal(TensorArg a, const Tensor& b);
Tensor not_equal(TensorArg a, const Tensor& b);
Tensor less(TensorArg a, const Tensor& b);
Tensor less_equal(TensorArg a, const Tensor& b);
Tensor greater(TensorArg a, const Tensor& b);
Tensor greater_equal(TensorArg a, const Tensor& b);
Tensor operator==(TensorArg a, TensorArg b);  // same types on both sides, so that a == b is not ambiguous
Tensor operator!=(TensorArg a, TensorArg b);
Tensor operator<(TensorArg a, const Tensor& b);
Tensor operator<=(TensorArg a, const Tensor& b);
Tensor operator>(TensorArg a, const Tensor& b);
Tensor operator>=(TensorArg a, const Tensor& b);
Tensor operator==(TensorArg a, double b);
Tensor operator!=(TensorArg a, double b);
Tensor operator<(TensorArg a, double b);
Tensor operator<=(TensorArg a, double b);
Tensor operator>(TensorArg a, double b);
Tensor operator>=(TensorArg a, double b);
Tensor operator==(double a, TensorArg b);
Tensor operator!=(double a, TensorArg b);
Tensor operator<(double a, TensorArg b);
Tensor operator<=(double a, TensorArg b);
Tensor operator>(double a, TensorArg b);
Tensor operator>=(double a, TensorArg b);
/// Any dtype; numbers other than 0 count as true.
Tensor logical_and(TensorArg a, const Tensor& b);
Tensor logical_or(TensorArg a, const Tensor& b);
Tensor logical_not(TensorArg x);
/// The same for bool tensors: (x > 0.0) & ~(x > y). Throws DTypeError for other dtypes.
Tensor operator&(TensorArg a, const Tensor& b);
Tensor operator|(TensorArg a, const Tensor& b);
Tensor operator~(TensorArg x);

/// Sums `x` over the dimensions that broadcasting from `shape` added: the gradient of expand. Returns x itself if the
/// shapes are equal. Integers and bools sum to i64.
Tensor sum_to(TensorArg x, const Shape& shape);

}  // namespace poolgrad
