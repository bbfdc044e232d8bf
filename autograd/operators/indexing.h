// Gathers and scatters; indices are i64 on the same device and must be in range (IndexError names the first bad one and
// its position). A tensor without dimensions has dimensions 0 and -1 here, and takes an index without dimensions.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// out[..., i, ...] = x[..., index[i], ...] along dim; index one-dimensional.
Tensor index_select(Argument x, std::int64_t dim, const Tensor& index);
/// x with source added at rows `index` along dim, deterministic.
Tensor index_add(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// out[i, j] = x[index[i, j], j] for dim 0, and so on.
Tensor gather(Argument x, std::int64_t dim, const Tensor& index);
/// x with out[index[i, j], j] = source[i, j] for dim 0; of equal indices the last wins, and only it gets the gradient.
Tensor scatter(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// The same, with all of them added. Half types are summed in f32, and rounded once.
Tensor scatter_add(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// How scatter_reduce() combines: PyTorch's names.
enum class ScatterReduction { sum, prod, mean, amax, amin };
/// x with out[index[i, j], j] combined with every source[i, j] that is sent there, for dim 0; without `include_self`
/// the element of x takes no part where any is sent. Numbers; mean floating. Half types are combined in f32, and
/// rounded once. Those that share an extremum share its gradient, x among them where it takes part. prod has no second
/// derivative (Error).
Tensor scatter_reduce(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source,
                      ScatterReduction reduction, bool include_self = true);
/// x with x[indices] replaced by values, which broadcast to that shape; of equal places the last wins, and only it gets
/// the gradient. With `accumulate` values are added, all of them. `indices` are the leading dimensions' index tensors,
/// which broadcast (NumPy), or one bool mask, as x[mask] takes it.
Tensor index_put(Argument x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false);
/// cond ? a : b with broadcasting; cond bool.
Tensor where(Argument cond, const Tensor& a, const Tensor& b);
Tensor where(Argument cond, const Tensor& a, double b);
Tensor where(Argument cond, double a, const Tensor& b);
/// x with `value` where mask (bool, broadcast to x) is true.
Tensor masked_fill(Argument x, const Tensor& mask, double value);

// Table lookup.

/// out = table[index]: index (...) i64, table (V, C) -> (..., C). Rows equal to `padding` get no gradient.
Tensor embedding(Argument table, const Tensor& index, std::int64_t padding = -1);

}  // namespace poolgrad
