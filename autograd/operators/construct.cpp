#include "autograd/operators/construct.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "allocator/error.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

/// Limit of a diagonal's offset: beyond it, a matrix has more than 2^62 elements.
constexpr std::int64_t widest = std::int64_t{1} << 31;

/// Returns bool (m, n) for the last two dimensions of x: column - row > offset.
Tensor above_diagonal(const char* op, const Tensor& x, std::int64_t offset) {
  check_devices(op, {{"x", x}});
  if (x.dim() < 2) fail<ShapeError>(op, "x is not a matrix", {{"x", x}});
  const TensorOptions numbers{DType::i64, x.device()};
  offset = std::clamp(offset, -x.size(-2), x.size(-1));  // all true or all false beyond
  const Tensor rows = arange(0.0, static_cast<double>(x.size(-2)), 1.0, numbers);
  const Tensor columns = arange(0.0, static_cast<double>(x.size(-1)), 1.0, numbers);
  return greater(columns, unsqueeze(rows + static_cast<double>(offset), 1));
}

/// Repeats dimension `axis` of x `times` times: each element, or the dimension as a whole.
Tensor repeated(const Tensor& x, std::int64_t times, int axis, bool elementwise) {
  if (x.dim() == max_rank) {  // merges the dimensions before or after it to make room
    const bool before = axis > 1;
    const Tensor fewer = before ? flatten(x, 0, axis - 1) : flatten(x, axis + 1, max_rank - 1);
    const Tensor out = repeated(fewer, times, before ? 1 : axis, elementwise);
    Shape shape = x.shape();
    shape[axis] *= times;
    return reshape(out, shape);
  }
  const int at = elementwise ? axis + 1 : axis;
  Shape wide = x.shape();
  wide.insert(at, times);
  return flatten(expand(unsqueeze(x, at), wide), axis, axis + 1);
}

}  // namespace

Tensor tril(TensorArg x, std::int64_t offset) { return masked_fill(*x, above_diagonal("tril", x, offset), 0.0); }
Tensor triu(TensorArg x, std::int64_t offset) {
  return masked_fill(
      *x, logical_not(above_diagonal("triu", x, offset - (offset > std::numeric_limits<std::int64_t>::min()))), 0.0);
}

Tensor diag(TensorArg x, std::int64_t offset) {
  check_devices("diag", {{"x", x}});
  if (x->dim() == 2) return diagonal(*x, offset);
  if (x->dim() != 1) fail<ShapeError>("diag", "needs a vector or a matrix", {{"x", x}});
  if (offset < -widest || offset > widest)
    fail<ShapeError>("diag", "an offset of " + std::to_string(offset) + " makes a matrix of too many elements",
                     {{"x", x}});
  const std::int64_t size = x->numel() + std::abs(offset);
  return placed_on_diagonal(x, {size, size}, offset, 0, 1);
}

Tensor outer(TensorArg a, const Tensor& b) {
  const Operands operands = {{"lhs", a}, {"rhs", b}};
  check_devices("outer", operands);
  if (a->dim() != 1 || b.dim() != 1) fail<ShapeError>("outer", "needs two vectors", operands);
  return unsqueeze(*a, 1) * b;
}

Tensor one_hot(TensorArg index, std::int64_t classes, DType dtype) {
  const Operands operands = {{"index", index}};
  check_devices("one_hot", operands);
  check_dtype("one_hot", index, DType::i64, "indices must be i64", operands);
  check_index_range("one_hot", "index", index, classes);
  return to(equal(unsqueeze(*index, -1), arange(0.0, static_cast<double>(classes), 1.0, index->options())), dtype);
}

Tensor roll(TensorArg x, std::int64_t shift, std::int64_t dim) {
  check_devices("roll", {{"x", x}});
  const int axis = normalize_dim("roll", dim, x->shape());
  const std::int64_t size = x->shape()[axis];
  if (size == 0 || shift % size == 0) return x;
  const std::int64_t cut = size - (shift % size + size) % size;
  return cat({slice(*x, axis, cut), slice(*x, axis, 0, cut)}, axis);
}

Tensor flip(TensorArg x, const Dims& dims) {
  check_devices("flip", {{"x", x}});
  Tensor out = x;
  const std::bitset<max_rank> reversed = named_dims("flip", x, dims);
  for (int axis = 0; axis < x->dim(); ++axis) {
    if (!reversed[static_cast<std::size_t>(axis)]) continue;
    const auto last = static_cast<double>(x->shape()[axis] - 1);
    out = index_select(out, axis, arange(last, -1.0, -1.0, {DType::i64, x->device()}));
  }
  return out;
}

Tensor repeat(TensorArg x, std::int64_t times, std::int64_t dim) {
  check_devices("repeat", {{"x", x}});
  if (times < 0) fail<ValueError>("repeat", "a count is negative", {{"x", x}});
  return repeated(x, times, normalize_dim("repeat", dim, x->shape()), /*elementwise=*/true);
}

Tensor tile(TensorArg x, const Dims& counts) {
  check_devices("tile", {{"x", x}});
  for (const std::int64_t times : counts)
    if (times < 0) fail<ValueError>("tile", "a count is negative", {{"x", x}});
  Tensor out = x;
  while (out.dim() < counts.rank()) out = unsqueeze(out, 0);
  const int lead = out.dim() - counts.rank();
  for (int d = 0; d < counts.rank(); ++d)
    if (counts[d] != 1) out = repeated(out, counts[d], lead + d, /*elementwise=*/false);
  return out;
}

}  // namespace poolgrad
