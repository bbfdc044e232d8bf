// a + b, a - b, a * b, a / b and friends, with NumPy broadcasting; the gradient of an operand is summed over what
// broadcasting added. Operands share dtype and device (DTypeError, DeviceError); every dtype but bool. Scalars (C++
// doubles) never change the dtype: with integers they must be whole numbers (ValueError), and where they are compared
// or chosen they are first rounded to the dtype.
#pragma once

#include <source_location>

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
Tensor pow(double base, const Tensor& exponent);
/// Ties give half the gradient to each side.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, double b);
Tensor maximum(double a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, double b);
Tensor minimum(double a, const Tensor& b);
/// scale * x + shift, without a tensor for either; all operators with a double are this one, but for x / a, which
/// divides.
Tensor affine(const Tensor& x, double scale, double shift);

/// A tensor beside a symbol, and the line that this stands in, which its memory is put down to (see CallSite).
struct Written {
  const Tensor& tensor;
  std::source_location line;

  Written(const Tensor& x, std::source_location at = std::source_location::current())  // NOLINT: made from it
      : tensor(x), line(at) {}
  operator const Tensor&() const { return tensor; }  // NOLINT: taken for it
};

Tensor operator+(Written a, Written b);
Tensor operator-(Written a, Written b);
Tensor operator*(Written a, Written b);
Tensor operator/(Written a, Written b);
Tensor operator+(Written a, double b);
Tensor operator+(double a, Written b);
Tensor operator-(Written a, double b);
Tensor operator-(double a, Written b);
Tensor operator*(Written a, double b);
Tensor operator*(double a, Written b);
Tensor operator/(Written a, double b);
Tensor operator/(double a, Written b);
Tensor operator-(Written x);

/// x becomes x + y, in its own shape and dtype, y broadcast; returns x. In place, seen through every view, where no
/// gradient is recorded; what a backward has kept of x then notices by the version counter. Where one is, all handles
/// of this very tensor come to mean the sum, which is on the tape. Error if that would lose a gradient or go unseen: x
/// is a leaf that requires grad, or a view or a backward shares its memory. The handle itself does not change and may
/// be const or a temporary: x[0] += 1.0.
Tensor operator+=(Written x, Written y);
Tensor operator-=(Written x, Written y);
Tensor operator*=(Written x, Written y);
Tensor operator/=(Written x, Written y);
Tensor operator+=(Written x, double y);
Tensor operator-=(Written x, double y);
Tensor operator*=(Written x, double y);
Tensor operator/=(Written x, double y);

/// Comparisons are elementwise, give bool tensors and carry no gradient. (Whether two handles are the same tensor is
/// what Tensor::is_same says.)
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
Tensor operator==(Written a, Written b);
Tensor operator!=(Written a, Written b);
Tensor operator<(Written a, Written b);
Tensor operator<=(Written a, Written b);
Tensor operator>(Written a, Written b);
Tensor operator>=(Written a, Written b);
Tensor operator==(Written a, double b);
Tensor operator!=(Written a, double b);
Tensor operator<(Written a, double b);
Tensor operator<=(Written a, double b);
Tensor operator>(Written a, double b);
Tensor operator>=(Written a, double b);
Tensor operator==(double a, Written b);
Tensor operator!=(double a, Written b);
Tensor operator<(double a, Written b);
Tensor operator<=(double a, Written b);
Tensor operator>(double a, Written b);
Tensor operator>=(double a, Written b);
/// Of every dtype; what is not 0 is true.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
/// The same of bool tensors: (x > 0.0) & ~(x > y). DTypeError for others.
Tensor operator&(Written a, Written b);
Tensor operator|(Written a, Written b);
Tensor operator~(Written x);

/// Sums `x` over the dimensions that broadcasting `shape` to x.shape() added: the gradient of expand. x itself where
/// the shapes are equal.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace poolgrad
