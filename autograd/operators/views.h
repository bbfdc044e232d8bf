// Views: the same storage with another geometry (tensor/geometry.h). Gradients flow back through the inverse view.
// slice, select and split collect their gradients in one tensor, zero outside the taken parts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// Returns a view if possible, else a copy. One size may be -1.
Tensor reshape(TensorArg x, const Shape& shape);
/// Merges dimensions [first, last].
Tensor flatten(TensorArg x, std::int64_t first = 0, std::int64_t last = -1);
Tensor transpose(TensorArg x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(TensorArg x, const Dims& order);
/// Moves dimension source[i] to destination[i]; the others keep their order.
Tensor movedim(TensorArg x, const Dims& source, const Dims& destination);
/// Returns [start, stop) with a positive step, with NumPy semantics.
Tensor slice(TensorArg x, std::int64_t dim, std::int64_t start,
             std::int64_t stop = std::numeric_limits<std::int64_t>::max(), std::int64_t step = 1);
/// Returns x[..., index, ...] without that dimension.
Tensor select(TensorArg x, std::int64_t dim, std::int64_t index);
/// Broadcast without a copy; -1 keeps a size.
Tensor expand(TensorArg x, const Shape& shape);
Tensor squeeze(TensorArg x, std::int64_t dim);
Tensor unsqueeze(TensorArg x, std::int64_t dim);
/// Returns `parts` equal pieces along dim, as views. Throws ShapeError unless `parts` divides the size.
std::vector<Tensor> split(TensorArg x, std::int64_t parts, std::int64_t dim);
/// Returns pieces of these sizes along dim, as views. Throws ShapeError unless the sizes add up.
std::vector<Tensor> split(TensorArg x, const std::vector<std::int64_t>& sizes, std::int64_t dim);
std::vector<Tensor> split(TensorArg x, std::initializer_list<std::int64_t> sizes, std::int64_t dim);
/// Returns at most `parts` pieces along dim, as views; the last may be smaller.
std::vector<Tensor> chunk(TensorArg x, std::int64_t parts, std::int64_t dim = 0);
/// Returns the slices along dim, without that dimension, as views.
std::vector<Tensor> unbind(TensorArg x, std::int64_t dim = 0);
/// Returns a view of elements (i, i + offset) of dim0 and dim1 as a new last dimension; dim0 and dim1 disappear. For
/// batches of matrices: diagonal(x, 0, -2, -1). The gradient is zero off the diagonal.
Tensor diagonal(TensorArg x, std::int64_t offset = 0, std::int64_t dim0 = 0, std::int64_t dim1 = 1);
/// Returns a view of windows of `size` elements of dim, `dilation` apart, that start every `step` elements (as
/// PyTorch's unfold). The number of windows replaces dim; their elements are a new last dimension. The gradient of an
/// element is the sum over its windows, rounded once for half types.
Tensor unfold(TensorArg x, std::int64_t dim, std::int64_t size, std::int64_t step = 1, std::int64_t dilation = 1);
/// Returns x itself if it is row-major, else a copy.
Tensor contiguous(TensorArg x);
/// Returns a differentiable row-major copy.
Tensor clone(TensorArg x);

// Joining tensors. The gradients of the parts are views of the gradient of the whole.

/// Joins along an existing dimension; all other sizes must be equal.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// Joins along a new dimension; all shapes must be equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// Adds `before` and `after` elements of `value` at the ends of dimension dim.
Tensor pad(TensorArg x, std::int64_t dim, std::int64_t before, std::int64_t after, double value = 0.0);

// Changes of dtype and device. The gradient is cast or moved back.

/// Returns x itself if nothing changes. A cast to integers truncates, clamps to the range, and maps NaN to 0
/// (narrowed() in kernels/dtype.h).
Tensor to(TensorArg x, DType dtype);
Tensor to(TensorArg x, Device device);

}  // namespace poolgrad
