#include "autograd/operators/shared.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "kernels/indexing.h"
#include "tensor/creation.h"

namespace poolgrad {

std::string operator_message(std::string_view op, std::string_view reason, Operands operands) {
  std::string text = "[" + std::string(op) + "] " + std::string(reason);
  const char* separator = ": ";
  for (const Operand& operand : operands) {
    if (!operand.tensor.defined()) continue;
    text += separator + std::string(operand.name) + " " + describe(operand.tensor);
    separator = ", ";
  }
  return text;
}

void check_devices(const char* op, Operands operands) {
  for (const Operand& operand : operands)
    if (!operand.tensor.defined()) fail<ValueError>(op, std::string(operand.name) + " is undefined", operands);
  for (const Operand& operand : operands)
    if (operand.tensor.device() != operands.begin()->tensor.device())
      fail<DeviceError>(op, "operands live on different devices", operands);
}

void check_alike(const char* op, Operands operands) {
  check_devices(op, operands);
  for (const Operand& operand : operands)
    if (operand.tensor.dtype() != operands.begin()->tensor.dtype())
      fail<DTypeError>(op, "operands differ in dtype", operands);
}

void check_floating(const char* op, Operands operands) {
  check_alike(op, operands);
  if (!is_floating(operands.begin()->tensor.dtype())) fail<DTypeError>(op, "needs a floating dtype", operands);
}

void check_dtype(const char* op, const Tensor& tensor, DType dtype, std::string_view reason, Operands operands) {
  if (tensor.dtype() != dtype) fail<DTypeError>(op, reason, operands);
}

void check_index_range(const char* op, const char* what, const Tensor& index, std::int64_t limit, std::int64_t lowest) {
  kernels::check_indices(current_stream(index.device()), op, what, index.view(), limit, lowest);
}

Shape broadcast_operands(const char* op, Operands operands) {
  Shape shape;
  for (const Operand& operand : operands) {
    const std::optional<Shape> both = broadcast_shapes(shape, operand.tensor.shape());
    if (!both) fail<ShapeError>(op, "shapes do not broadcast", operands);
    shape = *both;
  }
  return shape;
}

std::bitset<max_rank> named_dims(const char* op, const Tensor& x, const Dims& dims) {
  const Shape shape = x.dim() == 0 ? Shape{1} : x.shape();
  std::bitset<max_rank> named;
  for (const std::int64_t dim : dims) {
    const auto d = static_cast<std::size_t>(normalize_dim(op, dim, shape));
    if (named[d]) fail<IndexError>(op, fmt::format("dimension {} is named twice", d), {{"x", x}});
    named.set(d);
  }
  return named;
}

void check_number(const char* op, const Tensor& x, double value) {
  check_devices(op, {{"x", x}});
  if (!has_number(x.dtype(), value))
    fail<ValueError>(op, fmt::format("{} does not fit into {}", value, to_string(x.dtype())), {{"x", x}});
}

void check_whole(const char* op, const Tensor& x, std::initializer_list<double> numbers) {
  if (!x.defined() || is_floating(x.dtype())) return;
  for (const double number : numbers)
    if (!has_number(DType::i64, number))
      fail<ValueError>(op, fmt::format("integers take whole numbers only, not {}", number), {{"x", x}});
}

Tensor number_beside(const char* op, const Tensor& x, double value) {
  check_number(op, x, value);
  return full({}, value, x.options());
}

int checked_axis(const char* op, const Tensor& x, std::int64_t dim, Operands operands) {
  if (x.dim() == 0) fail<ShapeError>(op, "x has no dimensions", operands);
  return normalize_dim(op, dim, x.shape());
}

View broadcast_view(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x.view();
  return x.alias(expanded(x.geometry(), shape)).view();
}

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
    if (!parts[i].defined() || parts[i].numel() == 0) continue;
    const std::int64_t stop = starts[i] + (parts[i].shape()[dim] - 1) * step + 1;
    kernels::copy(stream, out.alias(sliced(out.geometry(), dim, starts[i], stop, step)).view(), parts[i].view());
  }
  return out;
}

Tensor fold(const Tensor& windows, std::int64_t length, int axis, std::int64_t step, std::int64_t dilation, DType dtype,
            std::source_location at) {
  const Stream stream = current_stream(windows.device());
  Shape shape = windows.shape();
  const std::int64_t count = shape[axis], size = shape.back();
  shape[axis] = length;
  shape.erase(shape.rank() - 1);
  const TensorOptions result{dtype, windows.device()}, sums{compute_dtype(dtype), windows.device()};
  const Tensor terms = windows.dtype() == sums.dtype ? windows.detach() : to(windows.detach(), sums.dtype);
  Tensor out = Tensor::empty(shape, sums, at);
  kernels::fill(stream, out.view(), 0.0);
  for (std::int64_t i = 0; i < size && count > 0; ++i) {
    const std::int64_t first = i * dilation;
    const View sum = out.alias(sliced(out.geometry(), axis, first, first + (count - 1) * step + 1, step)).view();
    kernels::binary(stream, kernels::BinaryOp::add, sum, sum, terms.alias(selected(terms.geometry(), -1, i)).view());
  }
  return result.dtype == sums.dtype ? out : to(out, result.dtype);
}

}  // namespace poolgrad
