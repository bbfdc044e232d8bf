// Gathers and scatters. Indices are i64 on the same device. An index out of range throws IndexError with the first bad
// index and its position. A tensor without dimensions accepts dimensions 0 and -1 and an index without dimensions.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// Returns out[..., i, ...] = x[..., index[i], ...] along dim, for a one-dimensional index.
Tensor index_select(TensorArg x, std::int64_t dim, const Tensor& index);
/// Returns x with source added at rows `index` along dim; deterministic.
Tensor index_add(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// Returns out[i, j] = x[index[i, j], j] for dim 0, and likewise for other dims.
Tensor gather(TensorArg x, std::int64_t dim, const Tensor& index);
/// Returns x with out[index[i, j], j] = source[i, j] for dim 0. Of equal indices the last wins, and only it gets the
/// gradient.
Tensor scatter(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// The same, but adds all sources. Half types are summed in f32 and rounded once.
Tensor scatter_add(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// The reductions of scatter_reduce(), with the names of PyTorch.
enum class ScatterReduction { sum, prod, mean, amax, amin };
/// Returns x with out[index[i, j], j] combined with all its source[i, j], for dim 0. Without `include_self`, an element
/// with sources ignores its value in x. Needs a numeric dtype, and mean a floating one. Half types are combined in f32
/// and rounded once. Elements that share an extremum share its gradient equally, x included if it takes part. prod has
/// no second derivative (Error).
Tensor scatter_reduce(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source,
                      ScatterReduction reduction, bool include_self = true);
/// Returns x with x[indices] replaced by values, which broadcast to that shape. Of equal positions the last wins, and
/// only it gets the gradient. With `accumulate`, adds all values. `indices` are index tensors for the leading
/// dimensions, which broadcast as in NumPy, or one bool mask as in x[mask].
Tensor index_put(TensorArg x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false);
/// Returns cond ? a : b with broadcasting; cond is bool.
Tensor where(TensorArg cond, const Tensor& a, const Tensor& b);
Tensor where(TensorArg cond, const Tensor& a, double b);
Tensor where(TensorArg cond, double a, const Tensor& b);
/// Returns x with `value` where mask is true; mask is bool and broadcasts to x.
Tensor masked_fill(TensorArg x, const Tensor& mask, double value);

// Table lookup.

/// Returns table[index]: index (...) i64, table (V, C) -> (..., C). Rows with index `padding` get no gradient.
Tensor embedding(TensorArg table, const Tensor& index, std::int64_t padding = -1);

}  // namespace poolgrad
