#include "autograd/operators/matmul.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/gemm.h"

namespace poolgrad {

namespace {

/// Returns the shape (..., m, n) with the broadcast batch dimensions of a and b.
Shape product_shape(const Tensor& a, const Tensor& b, Operands operands) {
  const std::int64_t inner = b.shape()[b.dim() - 2];
  if (a.shape().back() != inner) fail<ShapeError>("matmul", "inner dimensions differ", operands);
  Shape batch_a = a.shape(), batch_b = b.shape();
  const std::int64_t m = batch_a[a.dim() - 2], n = batch_b.back();
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

/// Returns (..., n) as (rows, n).
Tensor as_rows(const Tensor& x) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.shape().back()});
}
Tensor swapped(const Tensor& x) { return transpose(x, -2, -1); }

/// Returns the gradients of weight and bias from rows (n, in) and the gradient of their results (n, out). The bias
/// gradient comes from the product's epilogue, if there is one.
std::pair<Tensor, Tensor> gradients_of_table(const Tensor& grad, const Tensor& rows) {
  const Tensor weight = Tensor::empty({grad.shape()[1], rows.shape()[1]}, grad.options()),
               bias = Tensor::empty({grad.shape()[1]}, grad.options());
  product(weight, swapped(grad), rows, 0.0, {}, bias);
  return {weight, bias};
}

/// Returns d<grad, a b>/db. If b has no batch dimensions, one product covers all rows.
Tensor gradient_of_right(const Tensor& grad, const Tensor& a, const Shape& shape) {
  if (shape.rank() == 2) return matmul(swapped(as_rows(a)), as_rows(grad));
  return sum_to(matmul(swapped(a), grad), shape);
}

}  // namespace

Tensor matmul(TensorArg a, const Tensor& b) {
  if (const auto cast = autocast("matmul", {a, b}); !cast.empty()) return matmul(cast[0], cast[1]);
  const Operands operands = {{"lhs", a}, {"rhs", b}};
  check_floating("matmul", operands);
  if (a->dim() == 0 || b.dim() == 0) fail<ShapeError>("matmul", "an operand has no dimensions", operands);
  if (a->dim() == 1 || b.dim() == 1) {
    if (a->shape().back() != b.shape()[std::max(b.dim() - 2, 0)])
      fail<ShapeError>("matmul", "inner dimensions differ", operands);
    if (b.dim() == 1) return squeeze(matmul(*a, unsqueeze(b, 1)), -1);
    return squeeze(matmul(unsqueeze(*a, 0), b), -2);
  }
  Tensor out = Tensor::empty(product_shape(a, b, operands), a->options());
  product(out, a, b);
  if (wants_gradient({a, b}))
    record("matmul", {a, b}, {out},
           recipe([](const Tensor& left, const Tensor& right) { return matmul(left, right); },
                  flops(out, a->shape().back())),
           [left = a->shape(), right = b.shape(), a = b.requires_grad() ? SavedTensor(a) : SavedTensor(),
            b = a->requires_grad() ? SavedTensor(b) : SavedTensor()](const BackwardCall& call) {
             Gradients gradients(2);
             if (call.needs(1)) gradients[1] = gradient_of_right(call.gradient(), a.unpack(), right);
             if (call.needs(0)) gradients[0] = sum_to(matmul(call.gradient(), swapped(b.unpack())), left);
             return gradients;
           });
  return out;
}

Tensor linear(TensorArg x, const Tensor& weight, const Tensor& bias) {
  if (const auto cast = autocast("linear", {x, weight, bias}); !cast.empty()) return linear(cast[0], cast[1], cast[2]);
  const Operands operands = {{"x", x}, {"weight", weight}, {"bias", bias}};
  if (bias.defined()) {
    check_floating("linear", operands);
  } else {
    check_floating("linear", {{"x", x}, {"weight", weight}});
  }
  if (x->dim() == 0 || weight.dim() != 2)
    fail<ShapeError>("linear", "needs x (..., in) and weight (out, in)", operands);
  if (x->shape().back() != weight.shape()[1]) fail<ShapeError>("linear", "inner dimensions differ", operands);
  if (bias.defined() && bias.shape() != Shape{weight.shape()[0]})
    fail<ShapeError>("linear", "bias is not (out)", operands);
  if (x->dim() == 1) return squeeze(linear(unsqueeze(*x, 0), weight, bias), 0);

  Shape shape = x->shape();
  shape[x->dim() - 1] = weight.shape()[0];
  Tensor out = Tensor::empty(shape, x->options());
  const Tensor dense_bias = !bias.defined() || bias.is_contiguous() ? bias : bias.copy();
  product(out, x, weight.alias(transposed(weight.geometry(), 0, 1)), 0.0, dense_bias);
  if (wants_gradient({x, weight, bias}))
    record(
        "linear", {x, weight, bias}, {out},
        recipe([](const Tensor& rows, const Tensor& table, const Tensor& shift) { return linear(rows, table, shift); },
               flops(out, x->shape().back())),
        [x = weight.requires_grad() ? SavedTensor(x) : SavedTensor(),
         weight = x->requires_grad() ? SavedTensor(weight) : SavedTensor(),
         out_features = weight.shape()[0]](const BackwardCall& call) {
          Gradients gradients(3);
          const Tensor& grad = call.gradient();
          // First the gradient that may need recomputation: the gradient of x does not exist yet.
          if (call.needs(1)) {
            const Tensor rows = as_rows(x.unpack());
            if (call.needs(2) && !wants_gradient({grad, rows}))
              std::tie(gradients[1], gradients[2]) = gradients_of_table(as_rows(grad), rows);
            else
              gradients[1] = matmul(swapped(as_rows(grad)), rows);
          }
          if (call.needs(0)) gradients[0] = matmul(grad, weight.unpack());
          if (call.needs(2) && !gradients[2].defined()) gradients[2] = sum_to(grad, {out_features});
          return gradients;
        });
  return out;
}

namespace {

/// The layout of the last two dimensions for gemm: row-major, or the transpose of a row-major matrix.
struct Layout {
  bool usable = false, transposed = false;
  std::int64_t leading = 1;
};

/// Returns the layout of `lines` lines of `length` consecutive elements. A dimension of size 1 may have any stride.
Layout lines_of(std::int64_t lines, std::int64_t line_stride, std::int64_t length, std::int64_t element_stride,
                bool transposed) {
  if (element_stride != 1 && length > 1) return {};
  if (lines > 1 && line_stride < length) return {};
  return {true, transposed, lines > 1 ? line_stride : std::max<std::int64_t>(length, 1)};
}

Layout layout_of(const Tensor& matrix) {
  const int r = matrix.dim();
  const std::int64_t rows = matrix.shape()[r - 2], columns = matrix.shape()[r - 1];
  const std::int64_t row_stride = matrix.strides()[r - 2], column_stride = matrix.strides()[r - 1];
  const Layout straight = lines_of(rows, row_stride, columns, column_stride, false);
  return straight.usable ? straight : lines_of(columns, column_stride, rows, row_stride, true);
}

/// A batch dimension of all three operands: its size and strides.
struct BatchDim {
  std::int64_t size, a, b, out;

  bool continues(const BatchDim& inner) const {
    return a == inner.a * inner.size && b == inner.b * inner.size && out == inner.out * inner.size;
  }
};

std::int64_t batch_stride(const Tensor& x, int d, int batch_rank) {
  const int own = d - (batch_rank - (x.dim() - 2));
  return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
}

/// Returns the batch dimensions, outermost first. Merges neighbors if all operands allow it.
std::vector<BatchDim> batch_dims(const Tensor& out, const Tensor& a, const Tensor& b) {
  const int rank = out.dim() - 2;
  std::vector<BatchDim> dims;
  for (int d = 0; d < rank; ++d) {
    if (out.shape()[d] == 1) continue;
    const BatchDim next{out.shape()[d], batch_stride(a, d, rank), batch_stride(b, d, rank), out.strides()[d]};
    if (!dims.empty() && dims.back().continues(next)) {
      dims.back() = {dims.back().size * next.size, next.a, next.b, next.out};
    } else {
      dims.push_back(next);
    }
  }
  return dims;
}

}  // namespace

void product(const Tensor& out, const Tensor& left, const Tensor& right, double beta, const Tensor& bias,
             const Tensor& row_sums) {
  if (out.numel() == 0 && !row_sums.defined()) return;
  const Tensor a = layout_of(left).usable ? left : left.copy();
  const Tensor b = layout_of(right).usable ? right : right.copy();
  const Layout la = layout_of(a), lb = layout_of(b), lo = layout_of(out);
  const int r = out.dim();
  kernels::Gemm shape{.m = out.shape()[r - 2], .n = out.shape()[r - 1], .k = a.shape().back()};
  shape.transpose_a = la.transposed, shape.transpose_b = lb.transposed;
  shape.lda = la.leading, shape.ldb = lb.leading, shape.ldc = lo.leading;
  shape.beta = beta;
  shape.dtype = a.dtype();
  shape.f32_out = out.dtype() == DType::f32;
  if (bias.defined()) shape.bias = bias.view().data;
  if (row_sums.defined()) shape.row_sums = row_sums.view().data;

  std::vector<BatchDim> dims = batch_dims(out, a, b);
  // If all batches share `b` and the batches of a row-major `a` are adjacent, `a` is one tall matrix.
  if (!dims.empty() && !la.transposed && dims.back().b == 0) {
    const BatchDim& inner = dims.back();
    if (inner.a == shape.m * shape.lda && inner.out == shape.m * shape.ldc) {
      shape.m *= inner.size;
      dims.pop_back();
    }
  }
  if (!dims.empty()) {
    shape.batch = dims.back().size;
    shape.stride_a = dims.back().a, shape.stride_b = dims.back().b, shape.stride_c = dims.back().out;
    dims.pop_back();
  }

  std::int64_t calls = 1;
  for (const BatchDim& dim : dims) calls *= dim.size;
  const auto width = static_cast<std::int64_t>(size_of(a.dtype())),
             out_width = static_cast<std::int64_t>(size_of(out.dtype()));
  for (std::int64_t call = 0; call < calls; ++call) {
    std::int64_t rest = call, at_a = 0, at_b = 0, at_out = 0;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      const std::int64_t i = rest % dim->size;
      rest /= dim->size;
      at_a += i * dim->a, at_b += i * dim->b, at_out += i * dim->out;
    }
    kernels::gemm(current_stream(out.device()), shape, a.view().as<char>() + at_a * width,
                  b.view().as<char>() + at_b * width, out.view().as<char>() + at_out * out_width);
  }
}

}  // namespace poolgrad
