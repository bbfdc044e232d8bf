// Sums, means and extrema over dimensions. `dims` is one number or a list, mean(x, -1) or mean(x, {0, 2}); an empty
// list means all dimensions. `keep` leaves reduced dimensions with size 1. Shape and strides fix the order of every
// sum. A dimension out of range or named twice throws IndexError. If the gradient of an output is 0, so are the
// gradients of its inputs, even beside infinities and NaN.
#pragma once

#include <concepts>

#include "tensor/tensor.h"

namespace poolgrad {

/// Whether reduced dimensions stay, with size 1. Accepts bool only: a number would be mistaken for a second dimension.
class Keep {
 public:
  template <std::same_as<bool> Bool>
  Keep(Bool keep) : keep_(keep) {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Keep(Number)
  = delete;  // for several dimensions pass a list: sum(x, {0, 1})
  operator bool() const { return keep_; }

 private:
  bool keep_;
};

/// Integers and bools sum to i64, as in prod and cumsum.
Tensor sum(TensorArg x, const Dims& dims = {}, Keep keep = false);
/// Floating dtypes. NaN for an empty reduction.
Tensor mean(TensorArg x, const Dims& dims = {}, Keep keep = false);
/// Divides by max(n - correction, 0). Half types compute in f32.
Tensor var(TensorArg x, const Dims& dims = {}, Keep keep = false, double correction = 1.0);
/// Returns sqrt(variance), even if the variance overflows the dtype. The gradient is 0 where the deviation is 0.
Tensor stddev(TensorArg x, const Dims& dims = {}, Keep keep = false, double correction = 1.0);
/// Gradients are exact even where factors are 0.
Tensor prod(TensorArg x, const Dims& dims = {}, Keep keep = false);
/// Elements equal to the result share the gradient equally: ties, or all NaN elements. An empty reduction throws
/// ShapeError.
Tensor max(TensorArg x, const Dims& dims = {}, Keep keep = false);
Tensor min(TensorArg x, const Dims& dims = {}, Keep keep = false);
/// Returns log(sum(exp(x))) along one dimension, stable. A slice of -inf gives -inf and zero gradients. A slice with
/// inf gives inf; its infinite elements share the gradient.
Tensor logsumexp(TensorArg x, std::int64_t dim, Keep keep = false);
/// Running sum, including the element itself.
Tensor cumsum(TensorArg x, std::int64_t dim);
/// Running product, with exact gradients even where factors are 0. Takes log2(n) passes over x in each direction, as
/// logcumsumexp.
Tensor cumprod(TensorArg x, std::int64_t dim);
/// Returns log(cumsum(exp(x))), stable. Leading -inf give -inf and zero gradients. Floating dtypes.
Tensor logcumsumexp(TensorArg x, std::int64_t dim);
/// Return bool or i64, without gradient. argmax and argmin return the first of equal elements.
Tensor any(TensorArg x, const Dims& dims = {}, Keep keep = false);
Tensor all(TensorArg x, const Dims& dims = {}, Keep keep = false);
Tensor argmax(TensorArg x, std::int64_t dim, Keep keep = false);
Tensor argmin(TensorArg x, std::int64_t dim, Keep keep = false);
/// Index of the first largest or smallest of all elements in row-major order, 0-d.
Tensor argmax(TensorArg x);
Tensor argmin(TensorArg x);
/// Returns the p-norm (sum |x|^p)^(1/p) along dims: norm(x), norm(x, 2.0, -1). p is positive, inf (the largest |x|) or
/// 0 (the number of nonzero elements); otherwise throws ValueError. Intermediate powers neither overflow nor underflow.
/// The gradient is 0 where x is 0; for inf, ties share it equally. The norm of an empty tensor is 0, as in NumPy's
/// vector_norm.
Tensor norm(TensorArg x, double p = 2.0, const Dims& dims = {}, Keep keep = false);

}  // namespace poolgrad
