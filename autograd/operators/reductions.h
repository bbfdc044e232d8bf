// Sums, means and extrema over dimensions. `dims` is one number or a list, mean(x, -1) or mean(x, {0, 2}), and empty
// means all; `keep` leaves reduced dimensions as 1. The order of every sum is fixed by shape and strides. A dimension
// out of range or named twice throws IndexError. An output whose gradient is 0 passes 0 on, beside infinities and NaN
// too.
#pragma once

#include <concepts>

#include "tensor/tensor.h"

namespace poolgrad {

/// Whether reduced dimensions stay, as 1: true or false, and no number, which is taken for a second dimension.
class Keep {
 public:
  template <std::same_as<bool> Bool>
  Keep(Bool keep) : keep_(keep) {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) Keep(Number)
  = delete;  // several dimensions are a list: sum(x, {0, 1})
  operator bool() const { return keep_; }

 private:
  bool keep_;
};

/// Integers and bools sum to i64, here, in prod and in cumsum.
Tensor sum(Argument x, const Dims& dims = {}, Keep keep = false);
/// Floating dtypes; NaN where there is nothing to average.
Tensor mean(Argument x, const Dims& dims = {}, Keep keep = false);
/// Divides by n - correction, or by 0 where that is negative. Half types compute in f32.
Tensor variance(Argument x, const Dims& dims = {}, Keep keep = false, double correction = 1.0);
/// sqrt(variance), also where the dtype does not hold the variance; gradient 0 where that is 0.
Tensor stddev(Argument x, const Dims& dims = {}, Keep keep = false, double correction = 1.0);
/// Exact gradients even where factors are 0.
Tensor prod(Argument x, const Dims& dims = {}, Keep keep = false);
/// Elements that are the result share the gradient equally: ties, or all that are NaN. An empty reduction throws
/// ShapeError.
Tensor max(Argument x, const Dims& dims = {}, Keep keep = false);
Tensor min(Argument x, const Dims& dims = {}, Keep keep = false);
/// log(sum(exp(x))) along one dimension, stable. A slice of -inf gives -inf and zero gradients; one with inf gives inf,
/// whose elements share the gradient.
Tensor log_sum_exp(Argument x, std::int64_t dim = -1, Keep keep = false);
/// Running sum, the element itself included.
Tensor cumsum(Argument x, std::int64_t dim);
/// Running product; exact gradients even where factors are 0. A tree of log2(n) passes over x, forwards and backwards,
/// as in logcumsumexp.
Tensor cumprod(Argument x, std::int64_t dim);
/// log(cumsum(exp(x))), stable; -inf at the beginning gives -inf and zero gradients. Floating dtypes.
Tensor logcumsumexp(Argument x, std::int64_t dim);
/// bool / i64 results, no gradient. argmax and argmin give the first of equals.
Tensor any(Argument x, const Dims& dims = {}, Keep keep = false);
Tensor all(Argument x, const Dims& dims = {}, Keep keep = false);
Tensor argmax(Argument x, std::int64_t dim = -1, Keep keep = false);
Tensor argmin(Argument x, std::int64_t dim = -1, Keep keep = false);
/// The p-norm (sum |x|^p)^(1/p) of the elements along dims: norm(x), norm(x, 2.0, -1). p is positive, inf (the largest
/// |x|) or 0 (the number of elements that are not 0); ValueError otherwise. No power overflows or vanishes on the way.
/// The gradient is 0 where x is 0; for inf, ties share it equally. The norm of nothing is 0, as by NumPy's vector_norm.
Tensor norm(Argument x, double p = 2.0, const Dims& dims = {}, Keep keep = false);

}  // namespace poolgrad
