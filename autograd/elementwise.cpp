#include "autograd/elementwise.h"

#include <cmath>
#include <numbers>

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/definition.h"
#include "autograd/indexing.h"
#include "autograd/record.h"
#include "autograd/unary.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using kernels::UnaryOp;

Tensor zero_where(const Tensor& condition, const Tensor& x) { return masked_fill(x, condition, 0.0); }

/// grad * op'(x) in differentiable operators: what create_graph needs. Reads x or y = op(x) as the kernel does.
Tensor derivative(UnaryOp op, const Tensor& grad, const Tensor& x, const Tensor& y, double a, double b) {
  constexpr double pi = std::numbers::pi;
  const auto less_than = [&](double bound) { return less(x, full({}, bound, x.options())); };
  switch (op) {
    case UnaryOp::neg: return -grad;
    case UnaryOp::affine: return grad * a;
    case UnaryOp::quotient: return grad / a;
    case UnaryOp::abs: return grad * sign(x);
    case UnaryOp::square: return grad * x * 2.0;
    case UnaryOp::sqrt: return grad / y * 0.5;
    case UnaryOp::rsqrt: return grad * y * square(y) * -0.5;
    case UnaryOp::reciprocal: return -(grad * square(y));
    case UnaryOp::exp: return grad * y;
    case UnaryOp::expm1: return grad * (y + 1.0);
    case UnaryOp::log: return grad / x;
    case UnaryOp::log1p: return grad / (x + 1.0);
    case UnaryOp::sin: return grad * cos(x);
    case UnaryOp::cos: return -(grad * sin(x));
    case UnaryOp::tanh: return grad * (1.0 - square(y));
    case UnaryOp::sigmoid: return grad * (y - square(y));
    case UnaryOp::erf: return grad * exp(-square(x)) * (2.0 / std::sqrt(pi));
    case UnaryOp::softplus: return grad * sigmoid(x);
    case UnaryOp::power: return a == 0.0 ? zeros_like(grad) : grad * pow(x, a - 1.0) * a;
    case UnaryOp::relu: return zero_where(logical_not(less(zeros({}, x.options()), x)), grad);
    case UnaryOp::leaky_relu: {
      const Tensor positive = less(zeros({}, x.options()), x);
      return where(positive, grad, grad * a);
    }
    case UnaryOp::clamp: return zero_where(logical_or(less_than(a), less(full({}, b, x.options()), x)), grad);
    case UnaryOp::gelu: {
      const Tensor phi = erf(x * std::numbers::sqrt2 * 0.5) * 0.5 + 0.5;
      const Tensor density = exp(square(x) * -0.5) * (1.0 / std::sqrt(2.0 * pi));
      return grad * (phi + x * density);
    }
    case UnaryOp::gelu_tanh: {
      const double slope = 2.0 * std::sqrt(2.0 / pi), cubic = 0.044715;  // x sigmoid(slope (x + cubic x^3))
      const Tensor s = sigmoid(x * (square(x) * (slope * cubic) + slope));
      return grad * (s + (s - square(s)) * x * (square(x) * (3.0 * slope * cubic) + slope));
    }
    case UnaryOp::silu: {
      const Tensor s = sigmoid(x);
      return grad * (s + x * (s - square(s)));
    }
    default: return zeros_like(grad);  // piecewise constant
  }
}

void check_domain(const char* name, const Tensor& x, Domain domain) {
  check_devices(name, {{"x", x}});
  if (domain == Domain::floating && !is_floating(x.dtype()))
    fail<DTypeError>(name, "needs a floating dtype", {{"x", x}});
  if (domain == Domain::numbers && x.dtype() == DType::boolean) fail<DTypeError>(name, "bool is no number", {{"x", x}});
}

}  // namespace

Tensor record_unary(const char* name, UnaryOp op, const Tensor& x, double a, double b, Domain domain,
                    std::source_location at) {
  check_domain(name, x, domain);
  Tensor out = Tensor::empty_like(x, at);
  kernels::unary(current_stream(x.device()), op, out.view(), x.view(), a, b);
  if (wants_gradient({x})) {
    const SavedTensor input = kernels::needs_input(op) ? SavedTensor(x) : SavedTensor();
    const SavedTensor output = kernels::needs_output(op) ? SavedTensor::output(out) : SavedTensor();
    record(name, {x}, {out}, [op, a, b, input, output](const BackwardCall& call) -> Gradients {
      const Tensor& grad = call.gradient();
      const Tensor saved_x = input.defined() ? input.unpack() : Tensor();
      const Tensor saved_y = output.defined() ? output.unpack() : Tensor();
      if (grad_enabled()) return {derivative(op, grad, saved_x, saved_y, a, b)};
      Tensor dx = Tensor::empty_like(grad);
      kernels::unary_backward(current_stream(grad.device()), op, dx.view(), grad.view(),
                              saved_x.defined() ? saved_x.view() : View{}, saved_y.defined() ? saved_y.view() : View{},
                              a, b);
      return {dx};
    });
  }
  return out;
}

Tensor unary_test(const char* name, UnaryOp op, const Tensor& x, std::source_location at) {
  check_domain(name, x, Domain::any);
  Tensor out = Tensor::empty(x.shape(), {DType::boolean, x.device()}, at);
  kernels::unary(current_stream(x.device()), op, out.view(), x.view());
  return out;
}

}  // namespace poolgrad
