#include "autograd/softmax.h"

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/record.h"
#include "autograd/reductions.h"
#include "autograd/rows.h"
#include "autograd/unary.h"
#include "kernels/rows.h"

namespace poolgrad {
namespace {

using RowKernel = void (*)(Stream, View, View);
using RowBackwardKernel = void (*)(Stream, View, View, View);

/// The dimension; x has at least one.
int checked_dim(const char* name, const Tensor& x, std::int64_t dim) {
  check_floating(name, {{"x", x}});
  if (x.rank() == 0) fail<ShapeError>(name, "x has no dimensions", {{"x", x}});
  return normalize_dim(name, dim, x.shape());
}

Tensor computed(RowKernel kernel, const Tensor& x, std::source_location at = std::source_location::current()) {
  Tensor out = Tensor::empty_like(x, at);
  kernel(current_stream(x.device()), out.view(), dense(x).view());
  return out;
}

Tensor gradient(RowBackwardKernel kernel, const Tensor& grad, const Tensor& out) {
  Tensor dx = Tensor::empty_like(out);
  kernel(current_stream(out.device()), dx.view(), dense(grad).view(), out.view());
  return dx;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim, CallSite) {
  const int axis = checked_dim("softmax", x, dim);
  if (axis != x.rank() - 1) return moved_from_end(softmax(moved_to_end(x, axis)), axis);
  Tensor out = computed(kernels::softmax, x);
  if (wants_gradient({x}))
    record("softmax", {x}, {out}, [out = SavedTensor::output(out)](const BackwardCall& call) -> Gradients {
      const Tensor &grad = call.gradient(), y = out.unpack();
      if (!grad_enabled()) return {gradient(kernels::softmax_backward, grad, y)};
      return {y * (grad - sum(grad * y, {-1}, true))};
    });
  return out;
}

Tensor log_softmax(const Tensor& x, std::int64_t dim, CallSite) {
  const int axis = checked_dim("log_softmax", x, dim);
  if (axis != x.rank() - 1) return moved_from_end(log_softmax(moved_to_end(x, axis)), axis);
  Tensor out = computed(kernels::log_softmax, x);
  if (wants_gradient({x}))
    record("log_softmax", {x}, {out}, [out = SavedTensor::output(out)](const BackwardCall& call) -> Gradients {
      const Tensor &grad = call.gradient(), y = out.unpack();
      if (!grad_enabled()) return {gradient(kernels::log_softmax_backward, grad, y)};
      return {grad - exp(y) * sum(grad, {-1}, true)};
    });
  return out;
}

}  // namespace poolgrad
