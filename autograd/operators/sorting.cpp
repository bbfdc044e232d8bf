#include "autograd/operators/sorting.h"

#include <string>

#include "allocator/error.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/shared.h"
#include "kernels/reduce.h"

namespace poolgrad {
namespace {

int sorted_axis(const char* name, const Tensor& x, std::int64_t dim) {
  check_devices(name, {{"x", x}});
  return checked_axis(name, x, dim);
}

/// Returns the first `count` indices of the order along `axis`.
Tensor first_places(const Tensor& x, int axis, std::int64_t count, bool descending,
                    std::source_location at = std::source_location::current()) {
  const Tensor rows = moved_to_end(x.detach(), axis);
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = count;
  const Tensor out = Tensor::empty(shape, {DType::i64, x.device()}, at);
  kernels::argsort(current_stream(x.device()), out.view(), rows.view(), descending);
  return moved_from_end(out, axis);
}

}  // namespace

namespace {

/// Returns both results as as_vector() does.
template <class Function>
Sorted sorted_as_vector(const Tensor& x, const Function& of_vector) {
  const Sorted vector = of_vector(reshape(x, {1}));
  return {reshape(vector.values, {}), reshape(vector.indices, {})};
}

}  // namespace

Sorted sort(TensorArg x, std::int64_t dim, bool descending) {
  if (has_no_dimensions(x)) return sorted_as_vector(x, [=](const Tensor& one) { return sort(one, dim, descending); });
  const int axis = sorted_axis("sort", x, dim);
  const Tensor indices = first_places(x, axis, x->shape()[axis], descending);
  return {gather(*x, axis, indices), indices};
}

Tensor argsort(TensorArg x, std::int64_t dim, bool descending) {
  if (has_no_dimensions(x)) return as_vector(x, [=](const Tensor& one) { return argsort(one, dim, descending); });
  const int axis = sorted_axis("argsort", x, dim);
  return first_places(x, axis, x->shape()[axis], descending);
}

Sorted topk(TensorArg x, std::int64_t k, std::int64_t dim, bool largest) {
  if (has_no_dimensions(x) && k == 1)
    return sorted_as_vector(x, [=](const Tensor& one) { return topk(one, k, dim, largest); });
  const int axis = sorted_axis("topk", x, dim);
  if (k < 0 || k > x->shape()[axis])
    fail<ValueError>("topk", "k " + std::to_string(k) + " is out of range for dimension " + std::to_string(axis),
                     {{"x", x}});
  const Tensor indices = first_places(x, axis, k, largest);
  return {gather(*x, axis, indices), indices};
}

}  // namespace poolgrad
