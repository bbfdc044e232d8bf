// Views: the same storage under another geometry (tensor/geometry.h); gradients flow back through the inverse view. The
// gradient of slice, select and split is put together in one tensor, zero where nothing was taken.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// A view where possible, else a copy; one size may be -1.
Tensor reshape(Argument x, const Shape& shape);
/// Merges dimensions [first, last].
Tensor flatten(Argument x, std::int64_t first = 0, std::int64_t last = -1);
Tensor transpose(Argument x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(Argument x, const Dims& order);
/// Dimension source[i] comes to stand at destination[i]; the others keep their order.
Tensor movedim(Argument x, const Dims& source, const Dims& destination);
/// [start, stop) with a positive step, NumPy semantics.
Tensor slice(Argument x, std::int64_t dim, std::int64_t start,
             std::int64_t stop = std::numeric_limits<std::int64_t>::max(), std::int64_t step = 1);
/// x[..., index, ...] without that dimension.
Tensor select(Argument x, std::int64_t dim, std::int64_t index);
/// Broadcast without a copy; -1 keeps a size.
Tensor expand(Argument x, const Shape& shape);
Tensor squeeze(Argument x, std::int64_t dim);
Tensor unsqueeze(Argument x, std::int64_t dim);
/// `parts` equal pieces along dim (views); throws ShapeError where it does not divide.
std::vector<Tensor> split(Argument x, std::int64_t parts, std::int64_t dim);
/// Pieces of these sizes along dim (views); throws ShapeError where they do not add up.
std::vector<Tensor> split(Argument x, const std::vector<std::int64_t>& sizes, std::int64_t dim);
std::vector<Tensor> split(Argument x, std::initializer_list<std::int64_t> sizes, std::int64_t dim);
/// At most `parts` pieces along dim, all of one size but for a smaller last one (views).
std::vector<Tensor> chunk(Argument x, std::int64_t parts, std::int64_t dim = 0);
/// The slices along dim, without that dimension (views).
std::vector<Tensor> unbind(Argument x, std::int64_t dim = 0);
/// Elements (i, i + offset) of dim0 and dim1, which disappear, as a new last dimension (a view): batches of matrices
/// are diagonal(x, 0, -2, -1). The gradient is zero elsewhere.
Tensor diagonal(Argument x, std::int64_t offset = 0, std::int64_t dim0 = 0, std::int64_t dim1 = 1);
/// Windows of `size` elements of dim, `dilation` apart, which begin every `step` elements (a view, as PyTorch's
/// unfold): their number takes the place of dim, their elements are a new last dimension. The gradient of an element is
/// the sum over its windows, rounded once for half types.
Tensor unfold(Argument x, std::int64_t dim, std::int64_t size, std::int64_t step = 1, std::int64_t dilation = 1);
/// Row-major: x itself if it already is, else a copy.
Tensor contiguous(Argument x);
/// A differentiable row-major copy.
Tensor clone(Argument x);

// Several tensors into one; the gradients of the parts are views of the whole one.

/// Along an existing dimension; all other sizes equal.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// Along a new dimension; all shapes equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// `before` and `after` elements of `value` around dimension dim.
Tensor pad(Argument x, std::int64_t dim, std::int64_t before, std::int64_t after, double value = 0.0);

// Changes of dtype and device; the gradient is cast or moved back.

/// x itself when nothing changes. Integers of floating elements are as narrowed() in kernels/dtype.h has them: cut off
/// at the point, the nearest that there is, 0 for NaN.
Tensor to(Argument x, DType dtype);
Tensor to(Argument x, Device device);

}  // namespace poolgrad
