// Shared parts of operators: checks before allocation (one text on every device, showing all operands), the body of
// elementwise operators, assembly of pieces, products in any layout, and rows.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
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
/// i64 indices within [lowest, limit); IndexError "[op] <what> 300 at position (0, 17) is outside [0, 256)". Nothing is
/// found on sim, and a GPU says so at its next synchronisation.
void check_index_range(const char* op, const char* what, const Tensor& index, std::int64_t limit,
                       std::int64_t lowest = 0);
/// The shape that all operands broadcast to (NumPy); ShapeError otherwise.
Shape broadcast_operands(const char* op, Operands operands);
/// Which dimensions of x are among `dims`; IndexError for one that there is not, or that is named twice. Without
/// dimensions x has 0 and -1.
std::bitset<max_rank> named_dims(const char* op, const Tensor& x, const Dims& dims);
/// Dimension `dim` of x, counted from the front; ShapeError, showing the operands, where x has none.
int checked_axis(const char* op, const Tensor& x, std::int64_t dim, Operands operands);
inline int checked_axis(const char* op, const Tensor& x, std::int64_t dim) {
  return checked_axis(op, x, dim, {{"x", x}});
}
inline bool has_no_dimensions(const Tensor& x) { return x.defined() && x.rank() == 0; }
/// For x without dimensions, which has dimensions 0 and -1 like a vector of one element, as in PyTorch: what
/// `of_vector` gives for that vector, without dimensions again.
template <class Function>
Tensor as_vector(const Tensor& x, const Function& of_vector) {
  return reshape(of_vector(reshape(x, {1})), {});
}
/// `x` as a kernel sees it when broadcast to `shape`.
View broadcast_view(const Tensor& x, const Shape& shape);

/// ValueError where x has integers or bools and `value` is none of them.
void check_number(const char* op, const Tensor& x, double value);
/// ValueError where x has integers or bools and a number is not whole, or none of i64.
void check_whole(const char* op, const Tensor& x, std::initializer_list<double> numbers);
/// `value` as a 0-dimensional tensor like x. Throws as check_number().
Tensor number_beside(const char* op, const Tensor& x, double value);

// The shared body of elementwise operators of one tensor.

/// Which dtypes an elementwise operator takes.
enum class Domain { floating, numbers, any };

/// op(x, a, b), put on the tape under `name` and in traces down to the caller. Throws DTypeError outside the domain
/// (numbers: all but bool).
Tensor record_unary(const char* name, kernels::UnaryOp op, const Tensor& x, double a = 0.0, double b = 0.0,
                    Domain domain = Domain::floating, std::source_location at = std::source_location::current());
/// The same for operators that give bool tensors and carry no gradient.
Tensor unary_test(const char* name, kernels::UnaryOp op, const Tensor& x,
                  std::source_location at = std::source_location::current());

// Gradients of outputs that a loss does not read: 0, whatever infinities and NaN the partial derivatives have.

/// weight * x, and 0 where weight is 0 and x infinite or NaN. Shapes broadcast; twice differentiable.
Tensor mul_no_nan(const Tensor& weight, const Tensor& x);
/// a * b, whose gradients are mul_no_nan() of that of the result.
Tensor mul_with_no_nan_gradients(const Tensor& a, const Tensor& b);

// Slicing, and its gradient: pieces put back where they came from.

/// x cut along `axis` into pieces of these sizes, which add up: the outputs of one node of that name.
std::vector<Tensor> record_pieces(const char* name, const Tensor& x, int axis, const std::vector<std::int64_t>& sizes);

/// A tensor of `shape` that holds parts[i] along `dim` at starts[i], starts[i] + step, ..., and `value` elsewhere. An
/// undefined part leaves `value`. At least one part is defined. No gradient record.
Tensor assembled(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
                 std::int64_t step = 1, double value = 0.0, std::source_location at = std::source_location::current());

/// assembled() with zeros, differentiable: the gradient of a part is its slice. Backward of slice, select and split.
Tensor place(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
             std::int64_t step = 1);

/// x along the diagonal (offset, dim0, dim1) of zeros of shape `before`, differentiable: the gradient of diagonal().
Tensor placed_on_diagonal(const Tensor& x, const Shape& before, std::int64_t offset, int dim0, int dim1,
                          std::source_location at = std::source_location::current());

/// windows (..., n, ..., size) of a dimension of `length` elements, as unfold() makes them, added up where they came
/// from, in dtype. One pass for each element of a window, in their order; half types are added in f32. No gradient
/// record.
Tensor fold(const Tensor& windows, std::int64_t length, int axis, std::int64_t step, std::int64_t dilation, DType dtype,
            std::source_location at = std::source_location::current());

/// Puts `out`, x in another dtype, on the tape where a gradient is wanted; returns it.
Tensor recorded_cast(const Tensor& x, const Tensor& out);

// Matrix products of raw tensors in whatever layout they come: the compute part of matmul, linear and
// linear_cross_entropy.

/// out = a b + beta * out (+ bias on every row) for out (..., m, n), a (..., m, k), b (..., k, n). Batch dimensions of
/// a and b broadcast to those of out, which is contiguous in its last dimension. Transposed, sliced and broadcast
/// operands are used where they lie; an operand is copied only if neither of its last two dimensions has stride 1. out
/// (and bias) may be f32 where a and b are f16 or bf16. Of one product the sums of a's rows, (m), may be had besides.
/// No checks, no gradient record.
void product(const Tensor& out, const Tensor& a, const Tensor& b, double beta = 0.0, const Tensor& bias = {},
             const Tensor& row_sums = {});

/// The cost of products of rows with columns of `inner` elements that give `out`, for a recipe.
inline auto flops(const Tensor& out, std::int64_t inner) {
  return [sums = out.count(), inner] { return 2.0 * static_cast<double>(sums) * static_cast<double>(inner); };
}

// Layout helpers of operators that work on rows, the last dimension.

/// Row-major: x itself where it already is, else a copy without a gradient record.
inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : x.copy(); }

/// The view of a tensor; one without data where it is undefined.
inline View view_or_none(const Tensor& x) { return x.defined() ? x.view() : View{}; }

/// The shape without its last dimension.
inline Shape row_shape(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(shape.rank() - 1);
  return shape;
}

/// Differentiable views that move dimension `dim` to the end, and the last one back to `dim`.
inline Tensor moved_to_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d < x.rank(); ++d)
    if (d != dim) order.append(d);
  order.append(dim);
  return permute(x, order);
}
inline Tensor moved_from_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d + 1 < x.rank(); ++d) order.append(d);
  order.insert(dim, x.rank() - 1);
  return permute(x, order);
}

}  // namespace poolgrad
