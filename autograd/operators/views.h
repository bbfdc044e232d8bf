// Views: the same storage under another geometry (tensor/geometry.h); gradients flow back through the inverse view. The
// gradient of slice, select and split is put together in one tensor, zero where nothing was taken.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// A view where possible, else a copy; one size may be -1.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Merges dimensions [first, last].
Tensor flatten(const Tensor& x, std::int64_t first = 0, std::int64_t last = -1);
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1);
Tensor permute(const Tensor& x, const Dims& order);
/// [start, stop) with a positive step, NumPy semantics.
Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start,
             std::int64_t stop = std::numeric_limits<std::int64_t>::max(), std::int64_t step = 1);
/// x[..., index, ...] without that dimension.
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
/// Broadcast without a copy; -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
Tensor squeeze(const Tensor& x, std::int64_t dim);
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
/// `parts` equal pieces along dim (views); throws ShapeError where it does not divide.
std::vector<Tensor> split(const Tensor& x, std::int64_t parts, std::int64_t dim);
/// Row-major: x itself if it already is, else a copy.
Tensor contiguous(const Tensor& x);
/// A differentiable row-major copy.
Tensor clone(const Tensor& x);

// Several tensors into one; the gradients of the parts are views of the whole one.

/// Along an existing dimension; all other sizes equal.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// Along a new dimension; all shapes equal.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0, CallSite = {});
/// `before` and `after` elements of `value` around dimension dim.
Tensor pad(const Tensor& x, std::int64_t dim, std::int64_t before, std::int64_t after, double value = 0.0,
           CallSite = {});

// Changes of dtype and device; the gradient is cast or moved back.

/// x itself when nothing changes.
Tensor to(const Tensor& x, DType dtype, CallSite = {});
Tensor to(const Tensor& x, Device device, CallSite = {});

}  // namespace poolgrad
