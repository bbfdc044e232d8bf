#include "autograd/operators/matmul.h"

#include <algorithm>

#include "allocator/error.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/check.h"
#include "autograd/operators/product.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"

namespace poolgrad {
namespace {

/// (..., m, n) with the broadcast batch dimensions of a and b.
Shape product_shape(const Tensor& a, const Tensor& b, Operands operands) {
  const std::int64_t inner = b.shape()[b.rank() - 2];
  if (a.shape().back() != inner) fail<ShapeError>("matmul", "inner dimensions differ", operands);
  Shape batch_a = a.shape(), batch_b = b.shape();
  const std::int64_t m = batch_a[a.rank() - 2], n = batch_b.back();
  for (int i = 0; i < 2; ++i) {
    batch_a.erase(batch_a.rank() - 1);
    batch_b.erase(batch_b.rank() - 1);
  }
  std::optional<Shape> shape = broadcast_shapes(batch_a, batch_b);
  if (!shape) fail<ShapeError>("matmul", "batch dimensions do not broadcast", operands);
  shape->append(m);
  shape->append(n);
  return *shape;
}

/// (..., n) as (rows, n).
Tensor as_rows(const Tensor& x) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.shape().back()});
}
Tensor swapped(const Tensor& x) { return transpose(x, -2, -1); }

/// d<grad, a b>/db: where b has no batch dimensions of its own, one product over all rows.
Tensor gradient_of_right(const Tensor& grad, const Tensor& a, const Shape& shape) {
  if (shape.rank() == 2) return matmul(swapped(as_rows(a)), as_rows(grad));
  return sum_to(matmul(swapped(a), grad), shape);
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, CallSite) {
  const Operands operands = {{"lhs", a}, {"rhs", b}};
  check_floating("matmul", operands);
  if (a.rank() == 0 || b.rank() == 0) fail<ShapeError>("matmul", "an operand has no dimensions", operands);
  if (a.rank() == 1 || b.rank() == 1) {
    if (a.shape().back() != b.shape()[std::max(b.rank() - 2, 0)])
      fail<ShapeError>("matmul", "inner dimensions differ", operands);
    if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b.rank() == 1 ? unsqueeze(b, 1) : b), -2);
    return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  }
  Tensor out = Tensor::empty(product_shape(a, b, operands), a.options());
  product(out, a, b);
  if (wants_gradient({a, b}))
    record("matmul", {a, b}, {out},
           [left = a.shape(), right = b.shape(), a = b.requires_grad() ? SavedTensor(a) : SavedTensor(),
            b = a.requires_grad() ? SavedTensor(b) : SavedTensor()](const BackwardCall& call) {
             Gradients gradients(2);
             if (call.needs(0)) gradients[0] = sum_to(matmul(call.gradient(), swapped(b.unpack())), left);
             if (call.needs(1)) gradients[1] = gradient_of_right(call.gradient(), a.unpack(), right);
             return gradients;
           });
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, CallSite) {
  const Operands operands = {{"x", x}, {"weight", weight}, {"bias", bias}};
  if (bias.defined()) {
    check_floating("linear", operands);
  } else {
    check_floating("linear", {{"x", x}, {"weight", weight}});
  }
  if (x.rank() == 0 || weight.rank() != 2)
    fail<ShapeError>("linear", "needs x (..., in) and weight (out, in)", operands);
  if (x.shape().back() != weight.shape()[1]) fail<ShapeError>("linear", "inner dimensions differ", operands);
  if (bias.defined() && bias.shape() != Shape{weight.shape()[0]})
    fail<ShapeError>("linear", "bias is not (out)", operands);
  if (x.rank() == 1) return squeeze(linear(unsqueeze(x, 0), weight, bias), 0);

  Shape shape = x.shape();
  shape[x.rank() - 1] = weight.shape()[0];
  Tensor out = Tensor::empty(shape, x.options());
  const Tensor dense_bias = !bias.defined() || bias.is_contiguous() ? bias : bias.copy();
  product(out, x, weight.alias(transposed(weight.geometry(), 0, 1)), 0.0, dense_bias);
  if (wants_gradient({x, weight, bias}))
    record("linear", {x, weight, bias}, {out},
           [x = weight.requires_grad() ? SavedTensor(x) : SavedTensor(),
            weight = x.requires_grad() ? SavedTensor(weight) : SavedTensor(),
            out_features = weight.shape()[0]](const BackwardCall& call) {
             Gradients gradients(3);
             const Tensor& grad = call.gradient();
             if (call.needs(0)) gradients[0] = matmul(grad, weight.unpack());
             if (call.needs(1)) gradients[1] = matmul(swapped(as_rows(grad)), as_rows(x.unpack()));
             if (call.needs(2)) gradients[2] = sum_to(grad, {out_features});
             return gradients;
           });
  return out;
}

}  // namespace poolgrad
