// a + b, a - b, a * b, a / b and friends, with NumPy broadcasting; the gradient of an operand is summed over what
// broadcasting added. Operands share dtype and device (DTypeError, DeviceError); every dtype but bool. Scalars (C++
// doubles) never change the dtype: with integers they must be whole numbers (ValueError), and where they are compared
// or chosen they are first rounded to the dtype.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// Elementwise; ShapeError where the shapes do not broadcast.
Tensor add(Argument a, const Tensor& b);
Tensor sub(Argument a, const Tensor& b);
Tensor mul(Argument a, const Tensor& b);
/// Integers divide like C, x / 0 is 0.
Tensor div(Argument a, const Tensor& b);
/// a^b; the gradient with respect to b is 0 where a is 0, and with respect to a where b is 0.
Tensor pow(Argument a, const Tensor& b);
Tensor pow(Argument a, double exponent);
Tensor pow(double base, Argument exponent);
/// The angle of the point (x, y), in (-pi, pi]: floating dtypes. Gradient 0 at the origin, as in PyTorch.
Tensor atan2(Argument y, const Tensor& x);
/// The rest of a / b: fmod has the sign of a, as in C, remainder the sign of b, as in Python. The gradient of b is
/// minus the whole quotient, a constant. Of integers, a is the rest of a / 0, where div() gives 0.
Tensor fmod(Argument a, const Tensor& b);
Tensor fmod(Argument a, double b);
Tensor remainder(Argument a, const Tensor& b);
Tensor remainder(Argument a, double b);
/// The gradient goes to the operand that is the result, NaN too; ties give half to each side.
Tensor maximum(Argument a, const Tensor& b);
Tensor maximum(Argument a, double b);
Tensor maximum(double a, Argument b);
Tensor minimum(Argument a, const Tensor& b);
Tensor minimum(Argument a, double b);
Tensor minimum(double a, Argument b);
/// scale * x + shift, without a tensor for either; all operators with a double are this one, but for x / a, which
/// divides.
Tensor affine(Argument x, double scale, double shift);

Tensor operator+(Argument a, const Tensor& b);
Tensor operator-(Argument a, const Tensor& b);
Tensor operator*(Argument a, const Tensor& b);
Tensor operator/(Argument a, const Tensor& b);
Tensor operator+(Argument a, double b);
Tensor operator+(double a, Argument b);
Tensor operator-(Argument a, double b);
Tensor operator-(double a, Argument b);
Tensor operator*(Argument a, double b);
Tensor operator*(double a, Argument b);
Tensor operator/(Argument a, double b);
Tensor operator/(double a, Argument b);
Tensor operator-(Argument x);

/// x becomes x + y, in its own shape and dtype, y broadcast; returns x. Without a gradient record the memory changes,
/// as every view sees, and a backward that has saved x throws by its version counter. With one, all handles of this
/// tensor refer to the sum, which is on the tape. Error if that would lose a gradient or miss a view: x is a leaf that
/// requires grad, or a view or a backward shares its memory. The handle itself may be const or a temporary: x[0]
/// += 1.0.
Tensor operator+=(Argument x, const Tensor& y);
Tensor operator-=(Argument x, const Tensor& y);
Tensor operator*=(Argument x, const Tensor& y);
Tensor operator/=(Argument x, const Tensor& y);
Tensor operator+=(Argument x, double y);
Tensor operator-=(Argument x, double y);
Tensor operator*=(Argument x, double y);
Tensor operator/=(Argument x, double y);

/// Comparisons are elementwise, give bool tensors and carry no gradient. (Tensor::is_same compares handles.)
Tensor equal(Argument a, const Tensor& b);
Tensor not_equal(Argument a, const Tensor& b);
Tensor less(Argument a, const Tensor& b);
Tensor less_equal(Argument a, const Tensor& b);
Tensor greater(Argument a, const Tensor& b);
Tensor greater_equal(Argument a, const Tensor& b);
Tensor operator==(Argument a, Argument b);  // both alike, so that neither order is better
Tensor operator!=(Argument a, Argument b);
Tensor operator<(Argument a, const Tensor& b);
Tensor operator<=(Argument a, const Tensor& b);
Tensor operator>(Argument a, const Tensor& b);
Tensor operator>=(Argument a, const Tensor& b);
Tensor operator==(Argument a, double b);
Tensor operator!=(Argument a, double b);
Tensor operator<(Argument a, double b);
Tensor operator<=(Argument a, double b);
Tensor operator>(Argument a, double b);
Tensor operator>=(Argument a, double b);
Tensor operator==(double a, Argument b);
Tensor operator!=(double a, Argument b);
Tensor operator<(double a, Argument b);
Tensor operator<=(double a, Argument b);
Tensor operator>(double a, Argument b);
Tensor operator>=(double a, Argument b);
/// Any dtype; numbers other than 0 are true.
Tensor logical_and(Argument a, const Tensor& b);
Tensor logical_or(Argument a, const Tensor& b);
Tensor logical_not(Argument x);
/// The same of bool tensors: (x > 0.0) & ~(x > y). DTypeError for others.
Tensor operator&(Argument a, const Tensor& b);
Tensor operator|(Argument a, const Tensor& b);
Tensor operator~(Argument x);

/// Sums `x` over the dimensions that broadcasting `shape` to x.shape() added: the gradient of expand. x itself where
/// the shapes are equal. Integers and bools give i64, as their sums do.
Tensor sum_to(Argument x, const Shape& shape);

}  // namespace poolgrad
