// What operators check before they allocate: one text on every device, showing all operands.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace poolgrad {

/// An operand under the name that error messages give it.
struct Operand {
  std::string_view name;
  const Tensor& tensor;
};
using Operands = std::initializer_list<Operand>;

/// "[matmul] inner dimensions differ: lhs (4, 8) f32 on cpu, rhs (9, 2) f32 on cpu". Undefined operands are left out.
std::string operator_message(std::string_view op, std::string_view reason, Operands operands);

/// Throws E with operator_message().
template <class E>
[[noreturn]] void fail(std::string_view op, std::string_view reason, Operands operands) {
  throw E(operator_message(op, reason, operands));
}

/// Every operand is defined (ValueError), on one device (DeviceError) and of one dtype (DTypeError).
void check_alike(const char* op, Operands operands);
/// check_alike, and the dtype is floating.
void check_floating(const char* op, Operands operands);
/// Every operand is defined and on one device; dtypes are free.
void check_devices(const char* op, Operands operands);
/// The last operand has that dtype; `operands` are all that the message shows.
void check_dtype(const char* op, const Tensor& tensor, DType dtype, std::string_view reason, Operands operands);
/// i64 indices within [0, limit); IndexError "[op] <what> 300 at position (0, 17) is outside [0, 256)". Reads them, so
/// nothing is found on sim.
void check_index_range(const char* op, std::string_view what, const Tensor& index, std::int64_t limit);
/// The shape that all operands broadcast to (NumPy); ShapeError otherwise.
Shape broadcast_operands(const char* op, Operands operands);
/// `x` as a kernel sees it when broadcast to `shape`.
View broadcast_view(const Tensor& x, const Shape& shape);

}  // namespace poolgrad
