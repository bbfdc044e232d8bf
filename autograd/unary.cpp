#include "autograd/unary.h"

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/definition.h"
#include "autograd/elementwise.h"
#include "autograd/record.h"

namespace poolgrad {

using kernels::UnaryOp;

Tensor neg(const Tensor& x) { return record_unary("neg", UnaryOp::neg, x, 0, 0, Domain::numbers); }
Tensor abs(const Tensor& x) { return record_unary("abs", UnaryOp::abs, x, 0, 0, Domain::numbers); }
Tensor sign(const Tensor& x) { return record_unary("sign", UnaryOp::sign, x, 0, 0, Domain::numbers); }
Tensor square(const Tensor& x) { return record_unary("square", UnaryOp::square, x, 0, 0, Domain::numbers); }
Tensor sqrt(const Tensor& x) { return record_unary("sqrt", UnaryOp::sqrt, x); }
Tensor rsqrt(const Tensor& x) { return record_unary("rsqrt", UnaryOp::rsqrt, x); }
Tensor reciprocal(const Tensor& x) { return record_unary("reciprocal", UnaryOp::reciprocal, x); }
Tensor exp(const Tensor& x) { return record_unary("exp", UnaryOp::exp, x); }
Tensor expm1(const Tensor& x) { return record_unary("expm1", UnaryOp::expm1, x); }
Tensor log(const Tensor& x) { return record_unary("log", UnaryOp::log, x); }
Tensor log1p(const Tensor& x) { return record_unary("log1p", UnaryOp::log1p, x); }
Tensor sin(const Tensor& x) { return record_unary("sin", UnaryOp::sin, x); }
Tensor cos(const Tensor& x) { return record_unary("cos", UnaryOp::cos, x); }
Tensor tanh(const Tensor& x) { return record_unary("tanh", UnaryOp::tanh, x); }
Tensor sigmoid(const Tensor& x) { return record_unary("sigmoid", UnaryOp::sigmoid, x); }
Tensor erf(const Tensor& x) { return record_unary("erf", UnaryOp::erf, x); }
Tensor relu(const Tensor& x) { return record_unary("relu", UnaryOp::relu, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return record_unary("leaky_relu", UnaryOp::leaky_relu, x, slope); }
Tensor silu(const Tensor& x) { return record_unary("silu", UnaryOp::silu, x); }
Tensor softplus(const Tensor& x) { return record_unary("softplus", UnaryOp::softplus, x); }
Tensor floor(const Tensor& x) { return record_unary("floor", UnaryOp::floor, x, 0, 0, Domain::numbers); }
Tensor ceil(const Tensor& x) { return record_unary("ceil", UnaryOp::ceil, x, 0, 0, Domain::numbers); }
Tensor round(const Tensor& x) { return record_unary("round", UnaryOp::round, x, 0, 0, Domain::numbers); }
Tensor is_nan(const Tensor& x) { return unary_test("is_nan", UnaryOp::is_nan, x); }
Tensor is_finite(const Tensor& x) { return unary_test("is_finite", UnaryOp::is_finite, x); }

Tensor gelu(const Tensor& x, GeluKind kind) {
  return record_unary("gelu", kind == GeluKind::exact ? UnaryOp::gelu : UnaryOp::gelu_tanh, x);
}

Tensor clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) fail<ValueError>("clamp", "the lower bound is above the upper", {{"x", x}});
  return record_unary("clamp", UnaryOp::clamp, x, low, high, Domain::numbers);
}

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  check_floating("silu_mul", {{"gate", gate}, {"up", up}});
  if (gate.shape() != up.shape()) fail<ShapeError>("silu_mul", "shapes differ", {{"gate", gate}, {"up", up}});
  Tensor out = Tensor::empty_like(gate);
  kernels::silu_mul(current_stream(gate.device()), out.view(), gate.view(), up.view());
  if (wants_gradient({gate, up}))
    record("silu_mul", {gate, up}, {out},
           [gate = SavedTensor(gate), up = SavedTensor(up)](const BackwardCall& call) -> Gradients {
             const Tensor g = gate.unpack(), u = up.unpack();
             if (grad_enabled())
               return differentiable_gradients(
                   [](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {silu(in[0]) * in[1]}; }, {g, u},
                   {call.gradient()});
             Tensor dgate = Tensor::empty_like(g), dup = Tensor::empty_like(u);
             kernels::silu_mul_backward(current_stream(g.device()), dgate.view(), dup.view(), call.gradient().view(),
                                        g.view(), u.view());
             return {dgate, dup};
           });
  return out;
}

}  // namespace poolgrad
