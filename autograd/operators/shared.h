// Shared parts of operators: checks before allocation, whose messages show all operands; the body of elementwise
// operators; assembly of pieces; products of any layout; and rows.
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

/// An operand and its name in error messages.
struct Operand {
  std::string_view name;
  const Tensor& tensor;
};
using Operands = std::initializer_list<Operand>;

/// Returns for example "[matmul] inner dimensions differ: lhs (4, 8) f32 on cpu, rhs (9, 2) f32 on cpu". Omits
/// undefined operands.
std::string operator_message(std::string_view op, std::string_view reason, Operands operands);

/// Throws E with operator_message().
template <class E>
[[noreturn]] void fail(std::string_view op, std::string_view reason, Operands operands) {
  throw E(operator_message(op, reason, operands));
}

/// Checks that operands are defined (ValueError), on one device (DeviceError) and of one dtype (DTypeError).
void check_alike(const char* op, Operands operands);
/// check_alike(), and checks that the dtype is floating (DTypeError).
void check_floating(const char* op, Operands operands);
/// Checks that operands are defined and on one device.
void check_devices(const char* op, Operands operands);
/// Checks the dtype of `tensor`. The message shows all `operands`.
void check_dtype(const char* op, const Tensor& tensor, DType dtype, std::string_view reason, Operands operands);
/// Checks i64 indices against [lowest, limit). Throws IndexError "[op] <what> 300 at position (0, 17) is outside [0,
/// 256)"; a GPU throws at its next synchronization. Checks nothing on sim.
void check_index_range(const char* op, const char* what, const Tensor& index, std::int64_t limit,
                       std::int64_t lowest = 0);
/// Returns the shape that all operands broadcast to (NumPy). Throws ShapeError if there is none.
Shape broadcast_operands(const char* op, Operands operands);
/// Returns the dimensions of x in `dims`. Throws IndexError for a dimension out of range or named twice. A tensor
/// without dimensions accepts 0 and -1.
std::bitset<max_rank> named_dims(const char* op, const Tensor& x, const Dims& dims);
/// Returns dimension `dim` of x, counted from the front. Throws ShapeError, showing the operands, if x has no
/// dimensions.
int checked_axis(const char* op, const Tensor& x, std::int64_t dim, Operands operands);
inline int checked_axis(const char* op, const Tensor& x, std::int64_t dim) {
  return checked_axis(op, x, dim, {{"x", x}});
}
inline bool has_no_dimensions(const Tensor& x) { return x.defined() && x.dim() == 0; }
/// Returns of_vector(x as a vector of one element), again without dimensions. A tensor without dimensions accepts
/// dimensions 0 and -1, as in PyTorch.
template <class Function>
Tensor as_vector(const Tensor& x, const Function& of_vector) {
  return reshape(of_vector(reshape(x, {1})), {});
}
/// Returns the view of x, broadcast to `shape`.
View broadcast_view(const Tensor& x, const Shape& shape);

/// Throws ValueError if x holds integers or bools and `value` is not in its dtype.
void check_number(const char* op, const Tensor& x, double value);
/// Throws ValueError if x holds integers or bools and a number is not a whole i64 number.
void check_whole(const char* op, const Tensor& x, std::initializer_list<double> numbers);
/// Returns `value` as a 0-dimensional tensor like x. Throws the errors of check_number().
Tensor number_beside(const char* op, const Tensor& x, double value);

// The shared body of elementwise operators of one tensor.

/// The dtypes that an elementwise operator accepts.
enum class Domain { floating, numbers, any };

/// Returns op(x, a, b), recorded under `name`. Throws DTypeError for a dtype outside the domain; numbers means all
/// dtypes but bool.
Tensor record_unary(const char* name, kernels::UnaryOp op, const Tensor& x, double a = 0.0, double b = 0.0,
                    Domain domain = Domain::floating, std::source_location at = std::source_location::current());
/// The same for operators that return bool tensors without gradient.
Tensor unary_test(const char* name, kernels::UnaryOp op, const Tensor& x,
                  std::source_location at = std::source_location::current());

// Gradients of outputs that a loss does not read are 0, even if partial derivatives are infinite or NaN.

/// Returns weight * x, and 0 where weight is 0 and x is infinite or NaN. Shapes broadcast. Twice differentiable.
Tensor mul_no_nan(const Tensor& weight, const Tensor& x);
/// Returns a * b. Its gradients are products by mul_no_nan().
Tensor mul_with_no_nan_gradients(const Tensor& a, const Tensor& b);

// Slicing, and its gradient, which puts the pieces back in place.

/// Returns pieces of x along `axis` with these sizes, which must add up. They are the outputs of one node with this
/// name.
std::vector<Tensor> record_pieces(const char* name, const Tensor& x, int axis, const std::vector<std::int64_t>& sizes);

/// Returns a tensor of `shape` with parts[i] along `dim` at starts[i], starts[i] + step, ..., and `value` elsewhere. An
/// undefined part leaves `value`. At least one part must be defined. No gradient record.
Tensor assembled(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
                 std::int64_t step = 1, double value = 0.0, std::source_location at = std::source_location::current());

/// assembled() with zeros, differentiable: the gradient of a part is its slice. Backward of slice, select and split.
Tensor place(const std::vector<Tensor>& parts, const Shape& shape, int dim, const std::vector<std::int64_t>& starts,
             std::int64_t step = 1);

/// Returns zeros of shape `before` with x on the diagonal (offset, dim0, dim1). Differentiable: the gradient of
/// diagonal().
Tensor placed_on_diagonal(const Tensor& x, const Shape& before, std::int64_t offset, int dim0, int dim1,
                          std::source_location at = std::source_location::current());

/// Adds windows (..., n, ..., size), as made by unfold(), at their places in a dimension of `length` elements. The
/// result has `dtype`; half types are summed in f32. One pass for each element of a window, in order. No gradient
/// record.
Tensor fold(const Tensor& windows, std::int64_t length, int axis, std::int64_t step, std::int64_t dilation, DType dtype,
            std::source_location at = std::source_location::current());

/// Records `out`, a cast of x, if a gradient is wanted. Returns it.
Tensor recorded_cast(const Tensor& x, const Tensor& out);

// Matrix products of tensors of any layout, without checks: the computation of matmul, linear and linear_cross_entropy.

/// Computes out = a b + beta * out (+ bias on every row) for out (..., m, n), a (..., m, k), b (..., k, n). Batch
/// dimensions of a and b broadcast to those of out, which is contiguous in its last dimension. Transposed, sliced and
/// broadcast operands are read in place; an operand is copied only if neither of its last two dimensions has stride 1.
/// out and bias may be f32 if a and b are f16 or bf16. A single product also writes the sums of the rows of a, (m), to
/// `row_sums`. No checks, no gradient record.
void product(const Tensor& out, const Tensor& a, const Tensor& b, double beta = 0.0, const Tensor& bias = {},
             const Tensor& row_sums = {});

/// Returns the cost, for a recipe, of products of rows with columns of `inner` elements that give `out`.
inline auto flops(const Tensor& out, std::int64_t inner) {
  return [sums = out.numel(), inner] { return 2.0 * static_cast<double>(sums) * static_cast<double>(inner); };
}

// Layout helpers for operators on rows, the last dimension.

/// Returns x itself if it is row-major, else a copy without gradient record.
inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : x.copy(); }

/// Returns the view of a tensor, or a view without data if it is undefined.
inline View view_or_none(const Tensor& x) { return x.defined() ? x.view() : View{}; }

/// Returns the shape without its last dimension.
inline Shape row_shape(const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(shape.rank() - 1);
  return shape;
}

/// Return differentiable views that move dimension `dim` to the end, and the last dimension back to `dim`.
inline Tensor moved_to_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d < x.dim(); ++d)
    if (d != dim) order.append(d);
  order.append(dim);
  return permute(x, order);
}
inline Tensor moved_from_end(const Tensor& x, int dim) {
  Dims order;
  for (int d = 0; d + 1 < x.dim(); ++d) order.append(d);
  order.insert(dim, x.dim() - 1);
  return permute(x, order);
}

}  // namespace poolgrad
