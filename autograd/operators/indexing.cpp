#include "autograd/operators/indexing.h"

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/indexing.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using IndexKernel = void (*)(Stream, const View&, int, const View&, const View&);

/// Indices are i64, on the device of x and within dimension `dim` of it; returns that dimension.
int check_index(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, Operands operands) {
  check_devices(op, operands);
  check_dtype(op, index, DType::i64, "indices must be i64", operands);
  return checked_axis(op, x, dim, operands);
}

/// For the operators whose index has the rank of x: sizes agree outside `dim`.
void check_aligned(const char* op, const Tensor& x, int dim, const Tensor& index, Operands operands) {
  Shape expected = index.shape();
  if (expected.rank() == x.rank()) expected[dim] = x.shape()[dim];
  if (expected != x.shape()) fail<ShapeError>(op, "index and x differ outside the dimension", operands);
}

/// x with `source` written or added at the indices, not recorded.
Tensor updated(IndexKernel kernel, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  Tensor out = x.copy();
  kernel(current_stream(x.device()), out.view(), dim, index.view(), source.view());
  return out;
}

int check_scatter(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  const Operands operands = {{"x", x}, {"index", index}, {"source", source}};
  const int axis = check_index(op, x, dim, index, operands);
  check_dtype(op, source, x.dtype(), "operands differ in dtype", operands);
  check_aligned(op, x, axis, index, operands);
  if (source.shape() != index.shape()) fail<ShapeError>(op, "source and index differ in shape", operands);
  check_index_range(op, "index", index, x.shape()[axis]);
  return axis;
}

// What reads at indices and what adds at them are each other's gradients.

using Reading = Tensor (*)(Argument x, std::int64_t dim, const Tensor& index);
using Adding = Tensor (*)(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source);

/// Puts out = read(x, axis, index) on the tape; returns it.
Tensor record_read(const char* name, Reading read, Adding add, const Tensor& x, int axis, const Tensor& index,
                   const Tensor& out) {
  if (!wants_gradient({x})) return out;
  const SavedTensor kept(index);
  record(name, {x}, {out}, recipe([read, axis, kept](const Tensor& input) { return read(input, axis, kept.unpack()); }),
         [add, axis, kept, before = x.shape()](const BackwardCall& call) -> Gradients {
           const Tensor& grad = call.gradient();
           return {add(zeros(before, grad.options()), axis, kept.unpack(), grad)};
         });
  return out;
}

/// Puts out = add(x, axis, index, source) on the tape; returns it.
Tensor record_sum(const char* name, Adding add, Reading read, const Tensor& x, int axis, const Tensor& index,
                  const Tensor& source, const Tensor& out) {
  if (!wants_gradient({x, source})) return out;
  const SavedTensor kept(index);
  record(name, {x, source}, {out}, recipe([add, axis, kept](const Tensor& input, const Tensor& added) {
           return add(input, axis, kept.unpack(), added);
         }),
         [read, axis, kept](const BackwardCall& call) -> Gradients {
           return {call.gradient(), call.needs(1) ? read(call.gradient(), axis, kept.unpack()) : Tensor()};
         });
  return out;
}

}  // namespace

Tensor index_select(Argument x, std::int64_t dim, const Tensor& index) {
  const Operands operands = {{"x", x}, {"index", index}};
  const int axis = check_index("index_select", x, dim, index, operands);
  if (index.rank() != 1) fail<ShapeError>("index_select", "index is not one-dimensional", operands);
  check_index_range("index_select", "index", index, x->shape()[axis]);
  Shape shape = x->shape();
  shape[axis] = index.count();
  Tensor out = Tensor::empty(shape, x->options());
  kernels::index_select(current_stream(x->device()), out.view(), x->view(), axis, index.view());
  return record_read("index_select", index_select, index_add, x, axis, index, out);
}

Tensor index_add(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (const auto cast = autocast("index_add", {x, source}); !cast.empty())
    return index_add(cast[0], dim, index, cast[1]);
  const Operands operands = {{"x", x}, {"index", index}, {"source", source}};
  const int axis = check_index("index_add", x, dim, index, operands);
  check_dtype("index_add", source, x->dtype(), "operands differ in dtype", operands);
  if (index.rank() != 1) fail<ShapeError>("index_add", "index is not one-dimensional", operands);
  Shape expected = x->shape();
  expected[axis] = index.count();
  if (source.shape() != expected) fail<ShapeError>("index_add", "source does not have one slice per index", operands);
  check_index_range("index_add", "index", index, x->shape()[axis]);
  Tensor out = updated(kernels::index_add, x, axis, index, source);
  return record_sum("index_add", index_add, index_select, x, axis, index, source, out);
}

Tensor gather(Argument x, std::int64_t dim, const Tensor& index) {
  const Operands operands = {{"x", x}, {"index", index}};
  const int axis = check_index("gather", x, dim, index, operands);
  check_aligned("gather", x, axis, index, operands);
  check_index_range("gather", "index", index, x->shape()[axis]);
  Tensor out = Tensor::empty(index.shape(), x->options());
  kernels::gather(current_stream(x->device()), out.view(), x->view(), axis, index.view());
  return record_read("gather", gather, scatter_add, x, axis, index, out);
}

Tensor scatter_add(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (const auto cast = autocast("scatter_add", {x, source}); !cast.empty())
    return scatter_add(cast[0], dim, index, cast[1]);
  const int axis = check_scatter("scatter_add", x, dim, index, source);
  const DType sums = compute_dtype(x->dtype());  // of many small numbers, a half type would lose all but the first
  Tensor out = x->dtype() == sums || !is_floating(x->dtype())
                   ? updated(kernels::scatter_add, x, axis, index, source)
                   : to(updated(kernels::scatter_add, to(x->detach(), sums), axis, index, to(source.detach(), sums)),
                        x->dtype());
  return record_sum("scatter_add", scatter_add, gather, x, axis, index, source, out);
}

Tensor scatter(Argument x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (const auto cast = autocast("scatter", {x, source}); !cast.empty()) return scatter(cast[0], dim, index, cast[1]);
  const int axis = check_scatter("scatter", x, dim, index, source);
  Tensor out = updated(kernels::scatter, x, axis, index, source);
  if (wants_gradient({x, source})) {
    const SavedTensor kept(index);
    record("scatter", {x, source}, {out}, recipe([axis, kept](const Tensor& input, const Tensor& written) {
             return scatter(input, axis, kept.unpack(), written);
           }),
           [axis, saved = kept](const BackwardCall& call) -> Gradients {
             const Tensor &grad = call.gradient(), at = saved.unpack();
             Gradients gradients(2);
             if (call.needs(0)) gradients[0] = scatter(grad, axis, at, zeros(at.shape(), grad.options()));
             if (call.needs(1)) {
               // Every source element writes its number; those that read another one back were overwritten.
               const Tensor number =
                   reshape(arange(0.0, static_cast<double>(at.count()), 1.0, at.options()), at.shape());
               const Tensor winner = gather(scatter(zeros(grad.shape(), at.options()), axis, at, number), axis, at);
               gradients[1] = masked_fill(gather(grad, axis, at), not_equal(winner, number), 0.0);
             }
             return gradients;
           });
  }
  return out;
}

Tensor where(Argument cond, const Tensor& a, const Tensor& b) {
  if (const auto cast = autocast("where", {a, b}); !cast.empty()) return where(*cond, cast[0], cast[1]);
  const Operands operands = {{"cond", cond}, {"a", a}, {"b", b}};
  check_devices("where", operands);
  check_dtype("where", cond, DType::boolean, "the condition must be bool", operands);
  check_dtype("where", b, a.dtype(), "operands differ in dtype", operands);
  const Shape shape = broadcast_operands("where", operands);
  Tensor out = Tensor::empty(shape, a.options());
  kernels::where(current_stream(a.device()), out.view(), broadcast_view(cond, shape), broadcast_view(a, shape),
                 broadcast_view(b, shape));
  if (wants_gradient({a, b})) {
    const SavedTensor kept(cond);
    record("where", {a, b}, {out},
           recipe([kept](const Tensor& yes, const Tensor& no) { return where(kept.unpack(), yes, no); }),
           [cond = kept, left = a.shape(), right = b.shape()](const BackwardCall& call) -> Gradients {
             const Tensor &grad = call.gradient(), chosen = cond.unpack();
             return {call.needs(0) ? sum_to(masked_fill(grad, logical_not(chosen), 0.0), left) : Tensor(),
                     call.needs(1) ? sum_to(masked_fill(grad, chosen, 0.0), right) : Tensor()};
           });
  }
  return out;
}

Tensor where(Argument cond, const Tensor& a, double b) { return where(*cond, a, number_beside("where", a, b)); }
Tensor where(Argument cond, double a, const Tensor& b) { return where(*cond, number_beside("where", b, a), b); }

Tensor masked_fill(Argument x, const Tensor& mask, double value) {
  const Operands operands = {{"x", x}, {"mask", mask}};
  check_devices("masked_fill", operands);
  check_dtype("masked_fill", mask, DType::boolean, "the mask must be bool", operands);
  if (broadcast_operands("masked_fill", operands) != x->shape())
    fail<ShapeError>("masked_fill", "the mask does not broadcast to x", operands);
  Tensor out = Tensor::empty_like(x);
  const Tensor filling = number_beside("masked_fill", x, value);
  kernels::where(current_stream(x->device()), out.view(), broadcast_view(mask, x->shape()),
                 broadcast_view(filling, x->shape()), x->view());
  if (wants_gradient({x})) {
    const SavedTensor kept(mask);
    record("masked_fill", {x}, {out},
           recipe([kept, value](const Tensor& input) { return masked_fill(input, kept.unpack(), value); }),
           [mask = kept](const BackwardCall& call) -> Gradients {
             return {masked_fill(call.gradient(), mask.unpack(), 0.0)};
           });
  }
  return out;
}

Tensor embedding(Argument table, const Tensor& index, std::int64_t padding) {
  const Operands operands = {{"table", table}, {"index", index}};
  check_devices("embedding", operands);
  if (!is_floating(table->dtype())) fail<DTypeError>("embedding", "the table needs a floating dtype", operands);
  check_dtype("embedding", index, DType::i64, "indices must be i64", operands);
  if (table->rank() != 2) fail<ShapeError>("embedding", "the table is not (rows, columns)", operands);
  check_index_range("embedding", "index", index, table->shape()[0]);

  Shape shape = index.shape();
  shape.append(table->shape()[1]);
  Tensor out = Tensor::empty(shape, table->options());
  const Tensor rows = dense(index);
  kernels::embedding(current_stream(table->device()), out.view(), dense(table).view(), rows.view());
  if (wants_gradient({table})) {
    const SavedTensor kept(rows);
    record("embedding", {table}, {out},
           recipe([kept](const Tensor& entries) { return embedding(entries, kept.unpack()); }),
           [rows = kept, padding, like = table->shape(),
            options = table->options()](const BackwardCall& call) -> Gradients {
             const Tensor &grad = call.gradient(), looked_up = rows.unpack();
             if (grad_enabled()) {
               const Tensor skipped = looked_up == static_cast<double>(padding);
               const Tensor counted = masked_fill(grad, unsqueeze(skipped, -1), 0.0);
               return {index_add(zeros(like, options), 0, reshape(looked_up, {looked_up.count()}),
                                 reshape(counted, {looked_up.count(), like[1]}))};
             }
             Tensor dtable = zeros(like, options);
             kernels::embedding_backward(current_stream(grad.device()), dtable.view(), dense(grad).view(),
                                         looked_up.view(), padding);
             return {dtable};
           });
  }
  return out;
}

}  // namespace poolgrad
