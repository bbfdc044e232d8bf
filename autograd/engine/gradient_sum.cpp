#include "autograd/engine/gradient_sum.h"

#include <array>
#include <utility>

#include "allocator/stream.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

namespace {

void add_into(const Tensor& out, const Tensor& a, const Tensor& b) {
  kernels::axpby(current_stream(out.device()), out.view(), 1.0, a.view(), 1.0, b.view());
}

void add_exactly(Tensor& value, Tensor& exact, const Tensor& gradient, bool may_write) {
  const DType dtype = value.dtype(), wide = compute_dtype(dtype);
  if (grad_enabled()) {
    const Tensor before = to(value, wide);
    exact = exact.defined() ? where(equal(to(exact, dtype), value), exact, before) : before;
    exact = add_gradients(exact, to(gradient, wide));
    value = to(exact, dtype);
    return;
  }
  const bool first = !exact.defined();
  if (first)
    exact = Tensor::empty(value.shape(), {wide, value.device()});
  else if (exact.requires_grad())
    exact = exact.copy();
  if (!may_write) value = value.copy();
  const Tensor dense = contiguous(gradient);
  const kernels::UpdateOperands operands{value.view(), dense.view(), {exact.view()}};
  kernels::add_gradient(current_stream(value.device()), {.first = first}, std::array{operands});
  value.bump_version();
}

}  // namespace

void GradientSum::reset(Tensor value) {
  std::swap(value_, value);
  exact_ = {};
}

void GradientSum::add(Tensor gradient, bool is_last, bool in_place) {
  accumulate_gradient(value_, exact_, std::move(gradient), is_last, in_place);
}

void accumulate_gradient(Tensor& value, Tensor& exact, Tensor gradient, bool is_last, bool in_place) {
  if (!value.defined()) {
    value = std::move(gradient);
    return;
  }
  const bool may_write = in_place && !grad_enabled() && !value.requires_grad() && value.is_contiguous();
  if (is_half(value.dtype()) && (!is_last || exact.defined()))
    return add_exactly(value, exact, gradient, may_write || (!grad_enabled() && is_reusable(value)));
  if (may_write) {
    add_into(value, value, gradient);
    value.bump_version();
  } else {
    value = add_gradients(std::move(value), std::move(gradient));
  }
}

bool accumulate_into_part(const RunningSum& sum, const Tensor& gradient,
                          const std::function<Tensor(const Tensor&)>& part) {
  if (grad_enabled() || sum.value == nullptr || !is_reusable(*sum.value)) return false;
  const Tensor place = part(*sum.value);
  if (sum.exact == nullptr || (sum.is_last && !sum.exact->defined())) {
    add_into(place, place, gradient);
    return true;
  }
  const DType wide = compute_dtype(gradient.dtype());
  if (!sum.exact->defined()) *sum.exact = to(*sum.value, wide);
  const Tensor exact = part(*sum.exact);
  add_into(exact, exact, to(gradient, wide));
  kernels::copy(current_stream(place.device()), place.view(), exact.view());
  return true;
}

Tensor add_gradients(Tensor a, Tensor b) {
  if (!grad_enabled() && is_reusable(a)) {
    add_into(a, a, b);
    return a;
  }
  if (!grad_enabled() && is_reusable(b)) {
    add_into(b, a, b);
    return b;
  }
  Tensor out = Tensor::empty_like(a);
  add_into(out, a, b);
  if (wants_gradient({a, b}))
    record("add", {a, b}, {out}, [](const BackwardCall& call) -> Gradients {
      return {call.gradient(), call.gradient()};
    });
  return out;
}

}  // namespace poolgrad
