#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/elementwise.h"

namespace poolgrad {
namespace {

using kernels::BinaryOp;

Tensor compare(const char* name, BinaryOp op, const Tensor& a, const Tensor& b,
               std::source_location at = std::source_location::current()) {
  check_alike(name, {{"lhs", a}, {"rhs", b}});
  const Shape shape = broadcast_operands(name, {{"lhs", a}, {"rhs", b}});
  Tensor out = Tensor::empty(shape, {DType::boolean, a.device()}, at);
  kernels::binary(current_stream(a.device()), op, out.view(), broadcast_view(a, shape), broadcast_view(b, shape));
  return out;
}

}  // namespace

Tensor equal(const Tensor& a, const Tensor& b) { return compare("equal", BinaryOp::eq, a, b); }
Tensor not_equal(const Tensor& a, const Tensor& b) { return compare("not_equal", BinaryOp::ne, a, b); }
Tensor less(const Tensor& a, const Tensor& b) { return compare("less", BinaryOp::lt, a, b); }
Tensor less_equal(const Tensor& a, const Tensor& b) { return compare("less_equal", BinaryOp::le, a, b); }
Tensor greater(const Tensor& a, const Tensor& b) { return compare("greater", BinaryOp::gt, a, b); }
Tensor greater_equal(const Tensor& a, const Tensor& b) { return compare("greater_equal", BinaryOp::ge, a, b); }
Tensor logical_and(const Tensor& a, const Tensor& b) { return compare("logical_and", BinaryOp::logical_and, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return compare("logical_or", BinaryOp::logical_or, a, b); }
Tensor logical_not(const Tensor& x) { return unary_test("logical_not", kernels::UnaryOp::logical_not, x); }

}  // namespace poolgrad
