#include "autograd/views.h"

#include <algorithm>

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/joining.h"
#include "autograd/placing.h"
#include "autograd/record.h"
#include "kernels/elementwise.h"

namespace poolgrad {
namespace {

void check_defined(const char* op, const Tensor& x) { check_devices(op, {{"x", x}}); }

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", x);
  const Shape wanted = infer_shape("reshape", shape, x.count());
  const std::optional<Geometry> geometry = reshaped(x.geometry(), wanted);
  if (!geometry) return reshape(clone(x), wanted);
  Tensor out = x.alias(*geometry);
  if (wants_gradient({x}))
    record("reshape", {x}, {out},
           [before = x.shape()](const BackwardCall& call) -> Gradients { return {reshape(call.gradient(), before)}; });
  return out;
}

Tensor flatten(const Tensor& x, std::int64_t first, std::int64_t last) {
  check_defined("flatten", x);
  if (x.rank() == 0) return reshape(x, {1});
  const int begin = normalize_dim("flatten", first, x.shape()), end = normalize_dim("flatten", last, x.shape());
  if (begin > end) fail<IndexError>("flatten", "the first dimension comes after the last", {{"x", x}});
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) {
    if (d > begin && d <= end) {
      shape[begin] *= x.shape()[d];
    } else {
      shape.append(x.shape()[d]);
    }
  }
  return reshape(x, shape);
}

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  check_defined("transpose", x);
  Tensor out = x.alias(transposed(x.geometry(), dim0, dim1));
  if (wants_gradient({x}))
    record("transpose", {x}, {out},
           [dim0, dim1](const BackwardCall& call) -> Gradients { return {transpose(call.gradient(), dim0, dim1)}; });
  return out;
}

Tensor permute(const Tensor& x, const Dims& order) {
  check_defined("permute", x);
  Tensor out = x.alias(permuted(x.geometry(), order));
  if (wants_gradient({x})) {
    Dims inverse = order;
    for (int d = 0; d < order.rank(); ++d) inverse[normalize_dim("permute", order[d], x.shape())] = d;
    record("permute", {x}, {out},
           [inverse](const BackwardCall& call) -> Gradients { return {permute(call.gradient(), inverse)}; });
  }
  return out;
}

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  check_defined("slice", x);
  const Geometry geometry = sliced(x.geometry(), dim, start, stop, step);
  Tensor out = x.alias(geometry);
  if (wants_gradient({x})) {
    const int axis = normalize_dim("slice", dim, x.shape());
    const std::int64_t size = x.shape()[axis];
    const std::int64_t first = std::clamp<std::int64_t>(start < 0 ? start + size : start, 0, size);
    record("slice", {x}, {out}, [axis, first, step, before = x.shape()](const BackwardCall& call) -> Gradients {
      return {place({call.gradient()}, before, axis, {first}, step)};
    });
  }
  return out;
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  check_defined("select", x);
  Tensor out = x.alias(selected(x.geometry(), dim, index));
  if (wants_gradient({x})) {
    const int axis = normalize_dim("select", dim, x.shape());
    const std::int64_t first = index < 0 ? index + x.shape()[axis] : index;
    record("select", {x}, {out}, [axis, first, before = x.shape()](const BackwardCall& call) -> Gradients {
      return {place({unsqueeze(call.gradient(), axis)}, before, axis, {first})};
    });
  }
  return out;
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check_defined("expand", x);
  Tensor out = x.alias(expanded(x.geometry(), shape));
  if (wants_gradient({x}))
    record("expand", {x}, {out},
           [before = x.shape()](const BackwardCall& call) -> Gradients { return {sum_to(call.gradient(), before)}; });
  return out;
}

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  check_defined("squeeze", x);
  return reshape(x, squeezed(x.geometry(), dim).shape);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  check_defined("unsqueeze", x);
  return reshape(x, unsqueezed(x.geometry(), dim).shape);
}

std::vector<Tensor> split(const Tensor& x, std::int64_t parts, std::int64_t dim) {
  check_defined("split", x);
  const int axis = normalize_dim("split", dim, x.shape());
  const std::int64_t size = x.shape()[axis];
  if (parts < 1 || size % parts != 0)
    fail<ShapeError>(
        "split",
        "dimension " + std::to_string(axis) + " does not divide into " + std::to_string(parts) + " equal parts",
        {{"x", x}});
  std::vector<Tensor> pieces;
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < parts; ++i) {
    starts.push_back(i * (size / parts));
    pieces.push_back(x.alias(sliced(x.geometry(), axis, starts.back(), starts.back() + size / parts, 1)));
  }
  if (wants_gradient({x}))
    record("split", {x}, pieces, [axis, starts, before = x.shape()](const BackwardCall& call) -> Gradients {
      std::vector<Tensor> gradients;
      for (std::size_t i = 0; i < starts.size(); ++i) gradients.push_back(call.gradient(static_cast<int>(i)));
      return {place(gradients, before, axis, starts)};
    });
  return pieces;
}

Tensor contiguous(const Tensor& x) {
  check_defined("contiguous", x);
  return x.is_contiguous() ? x : clone(x);
}

Tensor clone(const Tensor& x) {
  check_defined("clone", x);
  Tensor out = x.copy();
  if (wants_gradient({x}))
    record("clone", {x}, {out}, [](const BackwardCall& call) -> Gradients { return {call.gradient()}; });
  return out;
}

}  // namespace poolgrad
