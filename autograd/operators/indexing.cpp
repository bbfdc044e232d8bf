#include "autograd/operators/indexing.h"

#include <span>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/indexing.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using IndexKernel = void (*)(Stream, const View&, int, const View&, const View&);

/// Checks that indices are i64, on the device of x and in range of dimension `dim`. Returns that dimension.
int check_index(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, Operands operands) {
  check_devices(op, operands);
  check_dtype(op, index, DType::i64, "indices must be i64", operands);
  return checked_axis(op, x, dim, operands);
}

/// Checks that x and an index of the same rank agree outside `dim`.
void check_aligned(const char* op, const Tensor& x, int dim, const Tensor& index, Operands operands) {
  Shape expected = index.shape();
  if (expected.rank() == x.dim()) expected[dim] = x.shape()[dim];
  if (expected != x.shape()) fail<ShapeError>(op, "index and x differ outside the dimension", operands);
}

/// Returns whether x has no dimensions and the index has one position. x then acts as a vector of one element.
bool have_no_dimensions(const Tensor& x, const Tensor& index) {
  return has_no_dimensions(x) && index.defined() && index.dim() <= 1 && index.numel() == 1;
}
/// Returns a tensor without dimensions as a vector, others unchanged.
Tensor one_of(const Tensor& x) { return has_no_dimensions(x) ? reshape(x, {1}) : x; }

/// Returns x with `source` written or added at the indices, not recorded.
Tensor updated(IndexKernel kernel, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  Tensor out = x.copy();
  kernel(current_stream(x.device()), out.view(), dim, index.view(), source.view());
  return out;
}

void add_at_index(Stream stream, const View& out, int dim, const View& index, const View& x) {
  kernels::scatter_reduce(stream, kernels::BinaryOp::add, out, dim, index, x);
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

// Reading and adding at indices are each other's gradients.

using Reading = Tensor (*)(TensorArg x, std::int64_t dim, const Tensor& index);
using Adding = Tensor (*)(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source);

/// Records out = read(x, axis, index) and returns it.
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

/// Records out = add(x, axis, index, source) and returns it.
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

Tensor index_select(TensorArg x, std::int64_t dim, const Tensor& index) {
  if (have_no_dimensions(x, index))
    return as_vector(x, [&](const Tensor& one) { return index_select(one, dim, one_of(index)); });
  const Operands operands = {{"x", x}, {"index", index}};
  const int axis = check_index("index_select", x, dim, index, operands);
  if (index.dim() != 1) fail<ShapeError>("index_select", "index is not one-dimensional", operands);
  check_index_range("index_select", "index", index, x->shape()[axis]);
  Shape shape = x->shape();
  shape[axis] = index.numel();
  Tensor out = Tensor::empty(shape, x->options());
  kernels::index_select(current_stream(x->device()), out.view(), x->view(), axis, index.view());
  return record_read("index_select", index_select, index_add, x, axis, index, out);
}

Tensor index_add(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (have_no_dimensions(x, index))
    return as_vector(x, [&](const Tensor& one) { return index_add(one, dim, one_of(index), one_of(source)); });
  if (const auto cast = autocast("index_add", {x, source}); !cast.empty())
    return index_add(cast[0], dim, index, cast[1]);
  const Operands operands = {{"x", x}, {"index", index}, {"source", source}};
  const int axis = check_index("index_add", x, dim, index, operands);
  check_dtype("index_add", source, x->dtype(), "operands differ in dtype", operands);
  if (index.dim() != 1) fail<ShapeError>("index_add", "index is not one-dimensional", operands);
  Shape expected = x->shape();
  expected[axis] = index.numel();
  if (source.shape() != expected) fail<ShapeError>("index_add", "source does not have one slice per index", operands);
  check_index_range("index_add", "index", index, x->shape()[axis]);
  Tensor out = updated(kernels::index_add, x, axis, index, source);
  return record_sum("index_add", index_add, index_select, x, axis, index, source, out);
}

Tensor gather(TensorArg x, std::int64_t dim, const Tensor& index) {
  if (have_no_dimensions(x, index)) return reshape(gather(reshape(*x, {1}), dim, one_of(index)), index.shape());
  const Operands operands = {{"x", x}, {"index", index}};
  const int axis = check_index("gather", x, dim, index, operands);
  check_aligned("gather", x, axis, index, operands);
  check_index_range("gather", "index", index, x->shape()[axis]);
  Tensor out = Tensor::empty(index.shape(), x->options());
  kernels::gather(current_stream(x->device()), out.view(), x->view(), axis, index.view());
  return record_read("gather", gather, scatter_add, x, axis, index, out);
}

Tensor scatter_add(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (have_no_dimensions(x, index))
    return as_vector(x, [&](const Tensor& one) { return scatter_add(one, dim, one_of(index), one_of(source)); });
  if (const auto cast = autocast("scatter_add", {x, source}); !cast.empty())
    return scatter_add(cast[0], dim, index, cast[1]);
  const int axis = check_scatter("scatter_add", x, dim, index, source);
  const DType sums = compute_dtype(x->dtype());  // a half type would lose small addends
  Tensor out =
      x->dtype() == sums || !is_floating(x->dtype())
          ? updated(add_at_index, x, axis, index, source)
          : to(updated(add_at_index, to(x->detach(), sums), axis, index, to(source.detach(), sums)), x->dtype());
  return record_sum("scatter_add", scatter_add, gather, x, axis, index, source, out);
}

Tensor scatter(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (have_no_dimensions(x, index))
    return as_vector(x, [&](const Tensor& one) { return scatter(one, dim, one_of(index), one_of(source)); });
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
               // Every source element writes its number. An element that reads another number was overwritten.
               const Tensor number =
                   reshape(arange(0.0, static_cast<double>(at.numel()), 1.0, at.options()), at.shape());
               const Tensor winner = gather(scatter(zeros(grad.shape(), at.options()), axis, at, number), axis, at);
               gradients[1] = masked_fill(gather(grad, axis, at), not_equal(winner, number), 0.0);
             }
             return gradients;
           });
  }
  return out;
}

namespace {

using kernels::BinaryOp;

/// Returns the start of scatter_reduce(): x, or `start` at indices that exclude x.
Tensor beginning(const Tensor& x, int axis, const Tensor& index, const Tensor& start, bool include_self) {
  return include_self ? x : updated(kernels::scatter, x, axis, index, start);
}

/// Returns the product or extremum of scatter_reduce(), not recorded.
Tensor combined(BinaryOp op, const Tensor& x, int axis, const Tensor& index, const Tensor& source, bool include_self) {
  const DType dtype = x.dtype(), wide = is_floating(dtype) ? compute_dtype(dtype) : dtype;
  const Tensor values = to(source.detach(), wide);
  // An extremum may start from any of its sources.
  const Tensor start = op == BinaryOp::mul ? ones_like(values) : values;
  const Tensor out = beginning(to(x.detach(), wide), axis, index, start, include_self).copy();
  kernels::scatter_reduce(current_stream(x.device()), op, out.view(), axis, index.view(), values.view());
  return to(out, dtype);
}

/// Returns 1 where x is the result or NaN, else 0.
Tensor wins(const Tensor& x, const Tensor& result, DType dtype) { return to((x == result) | isnan(x), dtype); }

/// Returns the gradient's factors for x and for the source: equal parts of 1.
std::pair<Tensor, Tensor> shares_of(const Tensor& x, int axis, const Tensor& index, const Tensor& source,
                                    const Tensor& result, bool include_self) {
  const NoGradGuard guard;
  const DType dtype = x.dtype(), wide = compute_dtype(dtype);
  const Tensor sent = wins(source, gather(result, axis, index), wide);
  const Tensor own = beginning(wins(x, result, wide), axis, index, zeros_like(sent), include_self);
  const Tensor winners = updated(add_at_index, own, axis, index, sent);
  return {to(own / winners, dtype), to(sent / gather(winners, axis, index), dtype)};
}

/// Returns the gradients of a product, exact even where factors are 0.
Gradients product_gradients(const Tensor& grad, const Tensor& x, int axis, const Tensor& index, const Tensor& source,
                            bool include_self) {
  const DType dtype = x.dtype(), wide = compute_dtype(dtype);
  const Tensor sent = to(source, wide), own = beginning(to(x, wide), axis, index, ones_like(sent), include_self);
  const auto zeros_of = [wide](const Tensor& factors) { return to(factors == 0.0, wide); };
  const auto nonzero = [](const Tensor& factors) { return masked_fill(factors, factors == 0.0, 1.0); };
  const Tensor none = updated(add_at_index, zeros_of(own), axis, index, zeros_of(sent));
  const Tensor product = combined(BinaryOp::mul, nonzero(own), axis, index, nonzero(sent), /*include_self=*/true);
  const auto others = [&](const Tensor& factors, const Tensor& zero_factors, const Tensor& all) {
    return masked_fill(all / nonzero(factors), zero_factors - zeros_of(factors) > 0.0, 0.0);
  };
  const Tensor of_x = beginning(others(own, none, product), axis, index, zeros_like(sent), include_self);
  const Tensor of_source = others(sent, gather(none, axis, index), gather(product, axis, index));
  return {to(to(grad, wide) * of_x, dtype), to(gather(to(grad, wide), axis, index) * of_source, dtype)};
}

Tensor record_combined(BinaryOp op, const Tensor& x, int axis, const Tensor& index, const Tensor& source,
                       bool include_self) {
  Tensor out = combined(op, x, axis, index, source, include_self);
  if (!wants_gradient({x, source})) return out;
  const SavedTensor at(index);
  record("scatter_reduce", {x, source}, {out},
         recipe([op, axis, at, include_self](const Tensor& input, const Tensor& sent) {
           return combined(op, input, axis, at.unpack(), sent, include_self);
         }),
         [op, axis, at, include_self, x = SavedTensor(x), source = SavedTensor(source),
          out = SavedTensor::output(out)](const BackwardCall& call) -> Gradients {
           const Tensor &grad = call.gradient(), places = at.unpack();
           if (op == BinaryOp::mul) {
             if (grad_enabled()) throw Error("[scatter_reduce] prod has no second derivative");
             return product_gradients(grad, x.unpack(), axis, places, source.unpack(), include_self);
           }
           const auto [own, sent] = shares_of(x.unpack().detach(), axis, places, source.unpack().detach(),
                                              out.unpack().detach(), include_self);
           return {grad * own, gather(grad, axis, places) * sent};
         });
  return out;
}

}  // namespace

Tensor scatter_reduce(TensorArg x, std::int64_t dim, const Tensor& index, const Tensor& source,
                      ScatterReduction reduction, bool include_self) {
  if (have_no_dimensions(x, index))
    return as_vector(x, [&](const Tensor& one) {
      return scatter_reduce(one, dim, one_of(index), one_of(source), reduction, include_self);
    });
  if (const auto cast = autocast("scatter_reduce", {x, source}); !cast.empty())
    return scatter_reduce(cast[0], dim, index, cast[1], reduction, include_self);
  const int axis = check_scatter("scatter_reduce", x, dim, index, source);
  const Operands operands = {{"x", x}, {"index", index}, {"source", source}};
  const DType dtype = x->dtype();
  if (dtype == DType::boolean) fail<DTypeError>("scatter_reduce", "bool is not a numeric dtype", operands);
  switch (reduction) {
    case ScatterReduction::prod: return record_combined(BinaryOp::mul, x, axis, index, source, include_self);
    case ScatterReduction::amax: return record_combined(BinaryOp::maximum, x, axis, index, source, include_self);
    case ScatterReduction::amin: return record_combined(BinaryOp::minimum, x, axis, index, source, include_self);
    case ScatterReduction::sum:
      return scatter_add(include_self ? *x : scatter(*x, axis, index, zeros_like(source)), axis, index, source);
    case ScatterReduction::mean: break;
  }
  if (!is_floating(dtype)) fail<DTypeError>("scatter_reduce", "a mean needs a floating dtype", operands);
  const Tensor own = to(*x, compute_dtype(dtype)), sent = to(source, own.dtype());
  const Tensor counts = scatter_add(include_self ? ones_like(own) : zeros_like(own), axis, index, ones_like(sent));
  const Tensor sums = scatter_reduce(own, axis, index, sent, ScatterReduction::sum, include_self);
  return to(sums / maximum(counts, 1.0), dtype);
}

namespace {

/// The elements named by index tensors. `dims` leading dimensions count as one, and `rows` (n) are positions in it, one
/// for each element of `shape`, in order.
struct Places {
  int dims = 0;
  Tensor rows;
  Shape shape;

  /// Returns x with its leading dimensions merged.
  Tensor merged(const Tensor& x) const {
    Shape merged{1};
    for (int d = 0; d < dims; ++d) merged[0] *= x.shape()[d];
    return reshape(x, with_rest(merged, x));
  }
  /// Returns `leading` followed by the unindexed dimensions of x.
  Shape with_rest(Shape leading, const Tensor& x) const {
    for (int d = dims; d < x.dim(); ++d) leading.append(x.shape()[d]);
    return leading;
  }
};

Places places_of_true(const char* op, const Tensor& x, const Tensor& mask) {
  const Operands operands = {{"x", x}, {"mask", mask}};
  check_devices(op, operands);
  const int dims = mask.dim();
  bool fits = dims <= x.dim();
  for (int d = 0; fits && d < dims; ++d) fits = mask.shape()[d] == x.shape()[d];
  if (!fits) fail<ShapeError>(op, "the mask does not have the leading dimensions of x", operands);
  std::vector<std::int64_t> rows;
  const std::vector<bool> chosen = mask.to_vector<bool>();
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) rows.push_back(static_cast<std::int64_t>(i));
  const auto count = static_cast<std::int64_t>(rows.size());
  return {dims, from_data(rows, {count}, x.device()), {count}};
}

Places places_of(const char* op, const Tensor& x, std::span<const Tensor> indices) {
  const NoGradGuard guard;
  if (indices.empty()) throw ValueError("[" + std::string(op) + "] no index given");
  check_devices(op, {{"x", x}, {"index", indices[0]}});
  if (indices.size() == 1 && indices[0].dtype() == DType::boolean) return places_of_true(op, x, indices[0]);
  Places places{.dims = static_cast<int>(indices.size()), .rows = {}, .shape = {}};
  if (places.dims > x.dim()) fail<IndexError>(op, std::to_string(places.dims) + " indices are too many", {{"x", x}});
  Tensor rows;
  for (int d = 0; d < places.dims; ++d) {
    const Tensor& index = indices[static_cast<std::size_t>(d)];
    const Operands operands = {{"x", x}, {"index", index}};
    check_devices(op, operands);
    check_dtype(op, index, DType::i64, "indices must be i64, or one bool mask", operands);
    const std::int64_t size = x.shape()[d];
    check_index_range(op, "index", index, size, -size);
    const auto extent = static_cast<double>(size);
    const Tensor forward = where(index < 0.0, index + extent, index);  // negative indices count from the end
    rows = rows.defined() ? rows * extent + forward : forward;
  }
  places.shape = rows.shape();
  places.rows = reshape(rows, {rows.numel()});
  return places;
}

}  // namespace

const Tensor Tensor::operator[](TensorArg index) const {
  const Places places = places_of("index", *this, {&*index, 1});
  return reshape(index_select(places.merged(*this), 0, places.rows), places.with_rest(places.shape, *this));
}

Tensor index_put(TensorArg x, const std::vector<Tensor>& indices, const Tensor& values, bool accumulate) {
  const Operands operands = {{"x", x}, {"values", values}};
  check_devices("index_put", operands);
  const Places places = places_of("index_put", x, indices);
  const Shape shape = places.with_rest(places.shape, x);
  if (broadcast_shapes(values.shape(), shape) != shape)
    fail<ShapeError>("index_put", "values do not broadcast to " + to_string(shape), operands);
  const Tensor merged = places.merged(x);
  const Tensor source = reshape(expand(values, shape), places.with_rest(places.rows.shape(), x));
  if (accumulate) return reshape(index_add(merged, 0, places.rows, source), x->shape());
  Shape column = Shape::filled(merged.dim(), 1);
  column[0] = places.rows.numel();
  const Tensor index = expand(reshape(places.rows, column), source.shape());
  return reshape(scatter(merged, 0, index, source), x->shape());
}

Tensor where(TensorArg cond, const Tensor& a, const Tensor& b) {
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

Tensor where(TensorArg cond, const Tensor& a, double b) { return where(*cond, a, number_beside("where", a, b)); }
Tensor where(TensorArg cond, double a, const Tensor& b) { return where(*cond, number_beside("where", b, a), b); }

Tensor masked_fill(TensorArg x, const Tensor& mask, double value) {
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

Tensor embedding(TensorArg table, const Tensor& index, std::int64_t padding) {
  const Operands operands = {{"table", table}, {"index", index}};
  check_devices("embedding", operands);
  if (!is_floating(table->dtype())) fail<DTypeError>("embedding", "the table needs a floating dtype", operands);
  check_dtype("embedding", index, DType::i64, "indices must be i64", operands);
  if (table->dim() != 2) fail<ShapeError>("embedding", "the table is not (rows, columns)", operands);
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
               return {index_add(zeros(like, options), 0, reshape(looked_up, {looked_up.numel()}),
                                 reshape(counted, {looked_up.numel(), like[1]}))};
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
