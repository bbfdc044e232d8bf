// From a UnaryOp to its functor. Internal to kernels/cpu.
#pragma once

#include "kernels/definition/functors.h"
#include "kernels/elementwise.h"

namespace poolgrad::kernels {

/// Calls f with a functor of functors.h.
template <class F>
decltype(auto) with_functor(UnaryOp op, const F& f) {
  switch (op) {
    case UnaryOp::neg: return f(functors::Neg{});
    case UnaryOp::abs: return f(functors::Abs{});
    case UnaryOp::sign: return f(functors::Sign{});
    case UnaryOp::square: return f(functors::Square{});
    case UnaryOp::sqrt: return f(functors::Sqrt{});
    case UnaryOp::rsqrt: return f(functors::Rsqrt{});
    case UnaryOp::reciprocal: return f(functors::Reciprocal{});
    case UnaryOp::exp: return f(functors::Exp{});
    case UnaryOp::expm1: return f(functors::Expm1{});
    case UnaryOp::log: return f(functors::Log{});
    case UnaryOp::log1p: return f(functors::Log1p{});
    case UnaryOp::sin: return f(functors::Sin{});
    case UnaryOp::cos: return f(functors::Cos{});
    case UnaryOp::tanh: return f(functors::Tanh{});
    case UnaryOp::sigmoid: return f(functors::Sigmoid{});
    case UnaryOp::erf: return f(functors::Erf{});
    case UnaryOp::relu: return f(functors::Relu{});
    case UnaryOp::gelu: return f(functors::Gelu{});
    case UnaryOp::gelu_tanh: return f(functors::GeluTanh{});
    case UnaryOp::silu: return f(functors::Silu{});
    case UnaryOp::softplus: return f(functors::Softplus{});
    case UnaryOp::floor: return f(functors::Floor{});
    case UnaryOp::ceil: return f(functors::Ceil{});
    case UnaryOp::round: return f(functors::Round{});
    case UnaryOp::logical_not: return f(functors::LogicalNot{});
    case UnaryOp::is_nan: return f(functors::IsNan{});
    case UnaryOp::is_finite: return f(functors::IsFinite{});
    case UnaryOp::leaky_relu: return f(functors::LeakyRelu{});
    case UnaryOp::clamp: return f(functors::Clamp{});
    case UnaryOp::power: return f(functors::Power{});
    case UnaryOp::quotient: return f(functors::Quotient{});
    default: return f(functors::Affine{});
  }
}

}  // namespace poolgrad::kernels
