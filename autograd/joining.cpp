#include "autograd/joining.h"

#include <algorithm>

#include "allocator/error.h"
#include "autograd/check.h"
#include "autograd/placing.h"
#include "autograd/record.h"
#include "autograd/views.h"
#include "kernels/elementwise.h"

namespace poolgrad {
namespace {

/// The slices of `grad` that belong to the parts.
Gradients slices_of(const BackwardCall& call, int dim, const std::vector<std::int64_t>& starts,
                    const std::vector<std::int64_t>& sizes, std::int64_t step = 1) {
  Gradients gradients(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i)
    if (call.needs(static_cast<int>(i)))
      gradients[i] = slice(call.gradient(), dim, starts[i], starts[i] + sizes[i] * step, step);
  return gradients;
}

/// "[cat] reason: tensor 0 (2, 3) f32 on cpu, tensor 1 ...".
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

Tensor assembled(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
                 std::int64_t step, double value, std::source_location at) {
  std::int64_t covered = 0;
  const Tensor* any = nullptr;
  for (const Tensor& part : parts) {
    if (!part.defined()) continue;
    covered += part.shape()[dim];
    any = &part;
  }
  const Stream stream = current_stream(any->device());
  Tensor out = Tensor::empty(shape, any->options(), at);
  if (covered != shape[dim]) kernels::fill(stream, out.view(), value);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined() || parts[i].count() == 0) continue;
    const std::int64_t stop = starts[i] + (parts[i].shape()[dim] - 1) * step + 1;
    kernels::copy(stream, out.alias(sliced(out.geometry(), dim, starts[i], stop, step)).view(), parts[i].view());
  }
  return out;
}

Tensor place(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
             std::int64_t step) {
  Tensor out = assembled(parts, shape, dim, starts, step);
  if (wants_gradient(parts)) {
    std::vector<std::int64_t> sizes;
    for (const Tensor& part : parts) sizes.push_back(part.defined() ? part.shape()[dim] : 0);
    record("place", parts, {out}, [dim, starts, sizes, step](const BackwardCall& call) -> Gradients {
      return slices_of(call, dim, starts, sizes, step);
    });
  }
  return out;
}

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim, CallSite) {
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
    record("cat", tensors, {out}, [axis, starts, sizes](const BackwardCall& call) -> Gradients {
      return slices_of(call, axis, starts, sizes);
    });
  return out;
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim, CallSite) {
  check_list("stack", tensors);
  for (const Tensor& tensor : tensors)
    if (tensor.shape() != tensors[0].shape()) fail_list<ShapeError>("stack", "shapes differ", tensors);
  const std::int64_t axis = dim < 0 ? dim + tensors[0].rank() + 1 : dim;
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) rows.push_back(unsqueeze(tensor, axis));
  return cat(rows, axis);
}

Tensor pad(const Tensor& x, std::int64_t dim, std::int64_t before, std::int64_t after, double value, CallSite) {
  check_devices("pad", {{"x", x}});
  if (before < 0 || after < 0) fail<ValueError>("pad", "a width is negative", {{"x", x}});
  const int axis = normalize_dim("pad", dim, x.shape());
  Shape shape = x.shape();
  shape[axis] += before + after;
  Tensor out = assembled({x}, shape, axis, {before}, 1, value);
  if (wants_gradient({x}))
    record("pad", {x}, {out}, [axis, before, size = x.shape()[axis]](const BackwardCall& call) -> Gradients {
      return slices_of(call, axis, {before}, {size});
    });
  return out;
}

}  // namespace poolgrad
