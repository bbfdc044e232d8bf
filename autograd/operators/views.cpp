#include "autograd/operators/views.h"

#include <fmt/format.h>

#include <algorithm>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/gradient_sum.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "kernels/elementwise.h"

namespace poolgrad {

namespace {

void check_defined(const char* op, const Tensor& x) { check_devices(op, {{"x", x}}); }

}  // namespace

Tensor reshape(TensorArg x, const Shape& shape) {
  check_defined("reshape", x);
  const Shape wanted = infer_shape("reshape", shape, x->shape());
  const std::optional<Geometry> geometry = reshaped(x->geometry(), wanted);
  if (!geometry) return reshape(clone(*x), wanted);
  Tensor out = x->alias(*geometry);
  if (wants_gradient({x}))
    record("reshape", {x}, {out},
           [before = x->shape()](const BackwardCall& call) -> Gradients { return {reshape(call.gradient(), before)}; });
  return out;
}

Tensor flatten(TensorArg x, std::int64_t first, std::int64_t last) {
  check_defined("flatten", x);
  const Shape as_a_vector = x->dim() == 0 ? Shape{1} : x->shape();  // for a scalar
  const int begin = normalize_dim("flatten", first, as_a_vector), end = normalize_dim("flatten", last, as_a_vector);
  if (x->dim() == 0) return reshape(*x, as_a_vector);
  if (begin > end) fail<IndexError>("flatten", "the first dimension comes after the last", {{"x", x}});
  Shape shape;
  for (int d = 0; d < x->dim(); ++d) {
    if (d > begin && d <= end) {
      shape[begin] *= x->shape()[d];
    } else {
      shape.append(x->shape()[d]);
    }
  }
  return reshape(*x, shape);
}

Tensor transpose(TensorArg x, std::int64_t dim0, std::int64_t dim1) {
  check_defined("transpose", x);
  if (x->dim() == 0) return as_vector(x, [=](const Tensor& one) { return transpose(one, dim0, dim1); });
  Tensor out = x->alias(transposed(x->geometry(), dim0, dim1));
  if (wants_gradient({x}))
    record("transpose", {x}, {out},
           [dim0, dim1](const BackwardCall& call) -> Gradients { return {transpose(call.gradient(), dim0, dim1)}; });
  return out;
}

Tensor permute(TensorArg x, const Dims& order) {
  check_defined("permute", x);
  Tensor out = x->alias(permuted(x->geometry(), order));
  if (wants_gradient({x})) {
    Dims inverse = order;
    for (int d = 0; d < order.rank(); ++d) inverse[normalize_dim("permute", order[d], x->shape())] = d;
    record("permute", {x}, {out},
           [inverse](const BackwardCall& call) -> Gradients { return {permute(call.gradient(), inverse)}; });
  }
  return out;
}

Tensor movedim(TensorArg x, const Dims& source, const Dims& destination) {
  check_defined("movedim", x);
  const std::bitset<max_rank> moved = named_dims("movedim", x, source), taken = named_dims("movedim", x, destination);
  if (moved.count() != taken.count())
    fail<ShapeError>("movedim",
                     "source and destination differ in the number of dimensions: " + to_string(source) + " to " +
                         to_string(destination),
                     {{"x", x}});
  Dims order = Dims::filled(x->dim(), -1);
  for (int i = 0; i < source.rank() && x->dim() > 0; ++i)
    order[normalize_dim("movedim", destination[i], x->shape())] = normalize_dim("movedim", source[i], x->shape());
  int next = 0;
  for (std::int64_t& from : order) {
    if (from >= 0) continue;
    while (moved[static_cast<std::size_t>(next)]) ++next;
    from = next++;
  }
  return permute(*x, order);
}

namespace {

/// The gradient of x, of shape `before`, from that of its slice (axis, first, step). Adds to the slice of the sum of
/// earlier gradients where there is one, so that a loop over slices is linear in x.
Gradients gradient_of_slice(const BackwardCall& call, const Tensor& grad, const Shape& before, int axis,
                            std::int64_t first, std::int64_t step = 1) {
  const std::int64_t stop = first + (grad.shape()[axis] - 1) * step + 1;
  const auto part = [&](const Tensor& sum) { return sum.alias(sliced(sum.geometry(), axis, first, stop, step)); };
  if (grad.numel() > 0 && accumulate_into_part(call.sum(0), grad, part)) return {Tensor()};
  return {place({grad}, before, axis, {first}, step)};
}

}  // namespace

Tensor slice(TensorArg x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  check_defined("slice", x);
  const Geometry geometry = sliced(x->geometry(), dim, start, stop, step);
  Tensor out = x->alias(geometry);
  if (wants_gradient({x})) {
    const int axis = normalize_dim("slice", dim, x->shape());
    const std::int64_t size = x->shape()[axis];
    const std::int64_t first = std::clamp<std::int64_t>(start < 0 ? start + size : start, 0, size);
    record("slice", {x}, {out}, [axis, first, step, before = x->shape()](const BackwardCall& call) -> Gradients {
      return gradient_of_slice(call, call.gradient(), before, axis, first, step);
    });
  }
  return out;
}

Tensor select(TensorArg x, std::int64_t dim, std::int64_t index) {
  check_defined("select", x);
  Tensor out = x->alias(selected(x->geometry(), dim, index));
  if (wants_gradient({x})) {
    const int axis = normalize_dim("select", dim, x->shape());
    const std::int64_t first = index < 0 ? index + x->shape()[axis] : index;
    record("select", {x}, {out}, [axis, first, before = x->shape()](const BackwardCall& call) -> Gradients {
      return gradient_of_slice(call, unsqueeze(call.gradient(), axis), before, axis, first);
    });
  }
  return out;
}

Tensor expand(TensorArg x, const Shape& shape) {
  check_defined("expand", x);
  Tensor out = x->alias(expanded(x->geometry(), shape));
  if (wants_gradient({x}))
    record("expand", {x}, {out},
           [before = x->shape()](const BackwardCall& call) -> Gradients { return {sum_to(call.gradient(), before)}; });
  return out;
}

Tensor squeeze(TensorArg x, std::int64_t dim) {
  check_defined("squeeze", x);
  if (x->dim() == 0) return as_vector(x, [dim](const Tensor& one) { return squeeze(one, dim); });
  return reshape(*x, squeezed(x->geometry(), dim).shape);
}

Tensor unsqueeze(TensorArg x, std::int64_t dim) {
  check_defined("unsqueeze", x);
  return reshape(*x, unsqueezed(x->geometry(), dim).shape);
}

std::vector<Tensor> record_pieces(const char* name, const Tensor& x, int axis, const std::vector<std::int64_t>& sizes) {
  std::vector<Tensor> pieces;
  std::vector<std::int64_t> starts;
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    starts.push_back(start);
    pieces.push_back(x.alias(sliced(x.geometry(), axis, start, start + size, 1)));
    start += size;
  }
  if (wants_gradient({x}))
    record(name, {x}, pieces, [axis, starts, before = x.shape()](const BackwardCall& call) -> Gradients {
      std::vector<Tensor> gradients;
      for (std::size_t i = 0; i < starts.size(); ++i) gradients.push_back(call.gradient(static_cast<int>(i)));
      return {place(gradients, before, axis, starts)};
    });
  return pieces;
}

std::vector<Tensor> split(TensorArg x, std::int64_t parts, std::int64_t dim) {
  check_defined("split", x);
  const int axis = normalize_dim("split", dim, x->shape());
  const std::int64_t size = x->shape()[axis];
  if (parts < 1 || size % parts != 0)
    fail<ShapeError>(
        "split",
        "dimension " + std::to_string(axis) + " does not divide into " + std::to_string(parts) + " equal parts",
        {{"x", x}});
  return record_pieces("split", x, axis, std::vector(static_cast<std::size_t>(parts), size / parts));
}

std::vector<Tensor> split(TensorArg x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  check_defined("split", x);
  const int axis = normalize_dim("split", dim, x->shape());
  std::int64_t rest = x->shape()[axis];
  bool fits = true;
  for (const std::int64_t size : sizes) {
    fits = fits && size >= 0 && size <= rest;
    rest -= fits ? size : 0;
  }
  if (!fits || rest != 0)
    fail<ShapeError>("split", fmt::format("sizes {} do not add up to dimension {}", fmt::join(sizes, ", "), axis),
                     {{"x", x}});
  return record_pieces("split", x, axis, sizes);
}

std::vector<Tensor> split(TensorArg x, std::initializer_list<std::int64_t> sizes, std::int64_t dim) {
  return split(*x, std::vector(sizes), dim);
}

std::vector<Tensor> chunk(TensorArg x, std::int64_t parts, std::int64_t dim) {
  check_defined("chunk", x);
  const int axis = normalize_dim("chunk", dim, x->shape());
  if (parts < 1) fail<ValueError>("chunk", "the number of parts is below 1", {{"x", x}});
  const std::int64_t size = x->shape()[axis], each = std::max<std::int64_t>((size - 1) / parts + 1, 1);
  std::vector<std::int64_t> sizes;
  for (std::int64_t start = 0; start < size || sizes.empty(); start += each)
    sizes.push_back(std::min(each, size - start));
  return record_pieces("split", x, axis, sizes);
}

std::vector<Tensor> unbind(TensorArg x, std::int64_t dim) {
  check_defined("unbind", x);
  const int axis = normalize_dim("unbind", dim, x->shape());
  std::vector<Tensor> slices =
      record_pieces("split", *x, axis, std::vector<std::int64_t>(static_cast<std::size_t>(x->shape()[axis]), 1));
  for (Tensor& piece : slices) piece = squeeze(piece, axis);
  return slices;
}

Tensor placed_on_diagonal(const Tensor& x, const Shape& before, std::int64_t offset, int dim0, int dim1,
                          std::source_location at) {
  const Stream stream = current_stream(x.device());
  Tensor out = Tensor::empty(before, x.options(), at);
  kernels::fill(stream, out.view(), 0.0);
  kernels::copy(stream, out.alias(diagonal_of(out.geometry(), offset, dim0, dim1)).view(), x.view());
  if (wants_gradient({x}))
    record("place_on_diagonal", {x}, {out}, recipe([before, offset, dim0, dim1](const Tensor& input) {
             return placed_on_diagonal(input, before, offset, dim0, dim1);
           }),
           [offset, dim0, dim1](const BackwardCall& call) -> Gradients {
             return {diagonal(call.gradient(), offset, dim0, dim1)};
           });
  return out;
}

namespace {

/// Records fold(), the gradient of unfold(). Their gradients are each other.
Tensor folded(const Tensor& windows, std::int64_t length, int axis, std::int64_t step, std::int64_t dilation,
              std::source_location at = std::source_location::current()) {
  Tensor out = fold(windows, length, axis, step, dilation, windows.dtype(), at);
  if (wants_gradient({windows})) {
    const std::int64_t size = windows.shape().back();
    record("fold", {windows}, {out}, recipe([length, axis, step, dilation](const Tensor& input) {
             return folded(input, length, axis, step, dilation);
           }),
           [axis, size, step, dilation](const BackwardCall& call) -> Gradients {
             return {unfold(call.gradient(), axis, size, step, dilation)};
           });
  }
  return out;
}

}  // namespace

Tensor diagonal(TensorArg x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1) {
  check_defined("diagonal", x);
  Tensor out = x->alias(diagonal_of(x->geometry(), offset, dim0, dim1));
  if (wants_gradient({x})) {
    const int a = normalize_dim("diagonal", dim0, x->shape()), b = normalize_dim("diagonal", dim1, x->shape());
    record("diagonal", {x}, {out}, [before = x->shape(), offset, a, b](const BackwardCall& call) -> Gradients {
      return {placed_on_diagonal(call.gradient(), before, offset, a, b)};
    });
  }
  return out;
}

Tensor unfold(TensorArg x, std::int64_t dim, std::int64_t size, std::int64_t step, std::int64_t dilation) {
  check_defined("unfold", x);
  if (x->dim() == 0) return squeeze(unfold(reshape(*x, {1}), dim, size, step, dilation), 0);
  Tensor out = x->alias(unfolded(x->geometry(), dim, size, step, dilation));
  if (wants_gradient({x})) {
    const int axis = normalize_dim("unfold", dim, x->shape());
    record("unfold", {x}, {out},
           [axis, length = x->shape()[axis], step, dilation](const BackwardCall& call) -> Gradients {
             return {folded(call.gradient(), length, axis, step, dilation)};
           });
  }
  return out;
}

const Tensor Tensor::operator[](const Indices& indices) const {
  const CallSite site(indices.line());
  check_defined("index", *this);
  int named = 0, ellipses = 0;
  for (const Index& index : indices) {
    named += index.kind == Index::Kind::one || index.kind == Index::Kind::range;
    ellipses += index.kind == Index::Kind::ellipsis;
  }
  if (ellipses > 1) fail<IndexError>("index", "more than one ellipsis", {{"x", *this}});
  if (named > this->dim()) fail<IndexError>("index", std::to_string(named) + " indices are too many", {{"x", *this}});
  Tensor out = *this;
  int dim = 0, own = 0;  // of out, and of this tensor
  std::vector<int> added;
  for (const Index& index : indices) switch (index.kind) {
      case Index::Kind::one: {
        const std::int64_t size = shape()[own];
        if (index.start < -size || index.start >= size)
          fail<IndexError>("index", fmt::format("{} is out of range for dimension {}", index.start, own),
                           {{"x", *this}});
        out = select(out, dim, index.start);
        ++own;
        break;
      }
      case Index::Kind::range:
        if (index.step <= 0)
          fail<ValueError>("index",
                           fmt::format("step {} of dimension {} is not positive; flip() reverses", index.step, own),
                           {{"x", *this}});
        out = slice(out, dim++, index.start, index.stop, index.step);
        ++own;
        break;
      case Index::Kind::ellipsis:
        dim += this->dim() - named;
        own += this->dim() - named;
        break;
      case Index::Kind::new_axis: added.push_back(dim + static_cast<int>(added.size())); break;
    }
  for (const int axis : added) out = unsqueeze(out, axis);  // after selected dimensions have gone, within the limit
  return out;
}

Tensor contiguous(TensorArg x) {
  check_defined("contiguous", x);
  return x->is_contiguous() ? *x : clone(*x);
}

Tensor clone(TensorArg x) {
  check_defined("clone", x);
  Tensor out = x->copy();
  if (wants_gradient({x}))
    record("clone", {x}, {out}, recipe([](const Tensor& input) { return input.copy(); }),
           [](const BackwardCall& call) -> Gradients { return {call.gradient()}; });
  return out;
}

namespace {

/// Returns the slices of `grad` for the parts.
Gradients slices_of(const BackwardCall& call, int dim, const std::vector<std::int64_t>& starts,
                    const std::vector<std::int64_t>& sizes, std::int64_t step = 1) {
  Gradients gradients(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i)
    if (call.needs(static_cast<int>(i)))
      gradients[i] = slice(call.gradient(), dim, starts[i], starts[i] + sizes[i] * step, step);
  return gradients;
}

/// Throws E with "[cat] reason: tensor 0 (2, 3) f32 on cpu, tensor 1 ...".
template <class E>
[[noreturn]] void fail_list(const char* op, const std::string& reason, const std::vector<Tensor>& tensors) {
  std::string text = "[" + std::string(op) + "] " + reason;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    text += (i ? ", tensor " : ": tensor ") + std::to_string(i) + " " +
            (tensors[i].defined() ? describe(tensors[i]) : "undefined");
  throw E(text);
}

void check_list(const char* op, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) throw ValueError("[" + std::string(op) + "] no tensors given");
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) fail_list<ValueError>(op, "a tensor is undefined", tensors);
    if (tensor.device() != tensors[0].device())
      fail_list<DeviceError>(op, "tensors live on different devices", tensors);
    if (tensor.dtype() != tensors[0].dtype()) fail_list<DTypeError>(op, "tensors differ in dtype", tensors);
  }
}

}  // namespace

Tensor place(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
             std::int64_t step) {
  Tensor out = assembled(parts, shape, dim, starts, step);
  if (wants_gradient(parts)) {
    std::vector<std::int64_t> sizes;
    for (const Tensor& part : parts) sizes.push_back(part.defined() ? part.shape()[dim] : 0);
    record("place", parts, {out}, recipe([shape, dim, starts, step](const std::vector<Tensor>& in) {
             return assembled(in, shape, dim, starts, step);
           }),
           [dim, starts, sizes, step](const BackwardCall& call) -> Gradients {
             return slices_of(call, dim, starts, sizes, step);
           });
  }
  return out;
}

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim, CallSite) {
  if (const auto cast = autocast("cat", tensors); !cast.empty()) return cat(cast, dim);
  check_list("cat", tensors);
  const int axis = normalize_dim("cat", dim, tensors[0].shape());
  Shape shape = tensors[0].shape();
  shape[axis] = 0;
  std::vector<std::int64_t> starts, sizes;
  for (const Tensor& tensor : tensors) {
    Shape expected = tensor.shape();
    if (expected.rank() == shape.rank()) expected[axis] = shape[axis];
    if (expected != shape)
      fail_list<ShapeError>("cat", "sizes differ outside dimension " + std::to_string(axis), tensors);
    starts.push_back(shape[axis]);
    sizes.push_back(tensor.shape()[axis]);
    shape[axis] += sizes.back();
  }
  Tensor out = assembled(tensors, shape, axis, starts);
  if (wants_gradient(tensors))
    record(
        "cat", tensors, {out}, recipe([axis](const std::vector<Tensor>& in) { return cat(in, axis); }),
        [axis, starts, sizes](const BackwardCall& call) -> Gradients { return slices_of(call, axis, starts, sizes); });
  return out;
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim, CallSite) {
  if (const auto cast = autocast("stack", tensors); !cast.empty()) return stack(cast, dim);
  check_list("stack", tensors);
  for (const Tensor& tensor : tensors)
    if (tensor.shape() != tensors[0].shape()) fail_list<ShapeError>("stack", "shapes differ", tensors);
  const int rank = tensors[0].dim();
  if (dim < -rank - 1 || dim > rank)
    fail_list<IndexError>("stack", "dimension " + std::to_string(dim) + " is out of range", tensors);
  const std::int64_t axis = dim < 0 ? dim + rank + 1 : dim;
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) rows.push_back(unsqueeze(tensor, axis));
  return cat(rows, axis);
}

Tensor pad(TensorArg x, std::int64_t dim, std::int64_t before, std::int64_t after, double value) {
  check_devices("pad", {{"x", x}});
  if (before < 0 || after < 0) fail<ValueError>("pad", "a width is negative", {{"x", x}});
  check_number("pad", x, value);
  const int axis = normalize_dim("pad", dim, x->shape());
  Shape shape = x->shape();
  std::int64_t& length = shape[axis];
  if (__builtin_add_overflow(length, before, &length) || __builtin_add_overflow(length, after, &length))
    fail<ShapeError>("pad",
                     fmt::format("{} and {} more elements make a dimension of more than 2^63 - 1", before, after),
                     {{"x", x}});
  Tensor out = assembled({x}, shape, axis, {before}, 1, value);
  if (wants_gradient({x}))
    record("pad", {x}, {out}, recipe([shape, axis, before, value](const Tensor& input) {
             return assembled({input}, shape, axis, {before}, 1, value);
           }),
           [axis, before, size = x->shape()[axis]](const BackwardCall& call) -> Gradients {
             return slices_of(call, axis, {before}, {size});
           });
  return out;
}

Tensor to(TensorArg x, DType dtype) {
  check_devices("to", {{"x", x}});
  if (x->dtype() == dtype) return x;
  return recorded_cast(x, Tensor::empty(x->shape(), {dtype, x->device()}).copy_from(x->detach()));
}

Tensor recorded_cast(const Tensor& x, const Tensor& out) {
  const DType dtype = out.dtype();
  if (wants_gradient({x}) && is_floating(dtype))
    record("cast", {x}, {out}, recipe([dtype](const Tensor& input) { return to(input, dtype); }),
           [before = x.dtype()](const BackwardCall& call) -> Gradients { return {to(call.gradient(), before)}; });
  return out;
}

Tensor to(TensorArg x, Device device) {
  check_devices("to", {{"x", x}});
  if (x->device() == device) return x;
  Tensor out = Tensor::empty(x->shape(), {x->dtype(), device}).copy_from(x->detach());
  if (wants_gradient({x}))
    record("move", {x}, {out}, recipe([device](const Tensor& input) { return to(input, device); }),
           [before = x->device()](const BackwardCall& call) -> Gradients { return {to(call.gradient(), before)}; });
  return out;
}

}  // namespace poolgrad
