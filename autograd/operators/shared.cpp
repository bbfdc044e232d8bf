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
  const Shape shape = x.rank() == 0 ? Shape{1} : x.shape();
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
  if (x.rank() == 0) fail<ShapeError>(op, "x has no dimensions", operands);
  return normalize_dim(op, dim, x.shape());
}

View broadcast_view(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x.view();
  return x.alias(expanded(x.geometry(), shape)).view();
}

}  // namespace poolgrad
