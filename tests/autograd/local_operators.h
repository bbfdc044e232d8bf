// Operators for tests of the tape alone, independent of the operator families.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "tensor/creation.h"
#include "tensor/tensor.h"

namespace poolgrad::local {

inline Tensor run_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b) {
  Tensor out = Tensor::empty_like(a);
  kernels::binary(current_stream(a.device()), op, out.view(), a.view(), b.view());
  return out;
}

/// a * b of equal shapes.
inline Tensor times(const Tensor& a, const Tensor& b) {
  Tensor out = run_binary(kernels::BinaryOp::mul, a, b);
  if (wants_gradient({a, b}))
    record("times", {a, b}, {out}, [a = SavedTensor(a), b = SavedTensor(b)](const BackwardCall& call) -> Gradients {
      Gradients result(2);
      if (call.needs(0)) result[0] = times(call.gradient(), b.unpack());
      if (call.needs(1)) result[1] = times(call.gradient(), a.unpack());
      return result;
    });
  return out;
}

inline Tensor plus(const Tensor& a, const Tensor& b) {
  Tensor out = run_binary(kernels::BinaryOp::add, a, b);
  if (wants_gradient({a, b}))
    record("plus", {a, b}, {out}, [](const BackwardCall& call) -> Gradients {
      return {call.gradient(), call.gradient()};
    });
  return out;
}

/// factor * x; keeps no tensor.
inline Tensor scaled(const Tensor& x, double factor) {
  Tensor out = Tensor::empty_like(x);
  kernels::unary(current_stream(x.device()), kernels::UnaryOp::affine, out.view(), x.view(), factor, 0.0);
  if (wants_gradient({x}))
    record("scaled", {x}, {out},
           [factor](const BackwardCall& call) -> Gradients { return {scaled(call.gradient(), factor)}; });
  return out;
}

/// exp(x); keeps its output.
inline Tensor exponential(const Tensor& x) {
  Tensor out = Tensor::empty_like(x);
  kernels::unary(current_stream(x.device()), kernels::UnaryOp::exp, out.view(), x.view());
  if (wants_gradient({x}))
    record("exponential", {x}, {out}, [y = SavedTensor::output(out)](const BackwardCall& call) -> Gradients {
      return {times(call.gradient(), y.unpack())};
    });
  return out;
}

inline Tensor total(const Tensor& x);

/// A 0-dimensional tensor broadcast to `shape`: a view with stride 0.
inline Tensor spread(const Tensor& x, const Shape& shape) {
  Tensor out = x.alias(expanded(x.geometry(), shape));
  if (wants_gradient({x}))
    record("spread", {x}, {out}, [](const BackwardCall& call) -> Gradients { return {total(call.gradient())}; });
  return out;
}

/// The sum of all elements, 0-dimensional.
inline Tensor total(const Tensor& x) {
  Tensor out = Tensor::empty({}, x.options());
  Geometry ones{Shape::filled(x.dim(), 1), Strides::filled(x.dim(), 0), 0};
  kernels::reduce(current_stream(x.device()), kernels::ReduceOp::sum, out.alias(ones).view(), x.view());
  if (wants_gradient({x}))
    record("total", {x}, {out},
           [shape = x.shape()](const BackwardCall& call) -> Gradients { return {spread(call.gradient(), shape)}; });
  return out;
}

/// x and -x: two outputs.
inline std::pair<Tensor, Tensor> both_signs(const Tensor& x) {
  Tensor same = x.copy();
  Tensor negative = scaled(x.detach(), -1.0);
  if (wants_gradient({x}))
    record("both_signs", {x}, {same, negative}, [](const BackwardCall& call) -> Gradients {
      if (!call.gradient(1).defined()) return {call.gradient(0)};
      const Tensor flipped = scaled(call.gradient(1), -1.0);
      return {call.gradient(0).defined() ? plus(call.gradient(0), flipped) : flipped};
    });
  return {same, negative};
}

/// Returns x with the given backward.
inline Tensor with_backward(const Tensor& x, BackwardFunction backward, std::string name = "odd") {
  Tensor out = x.copy();
  if (wants_gradient({x})) record(std::move(name), {x}, {out}, std::move(backward));
  return out;
}

/// An f64 vector that requires grad.
inline Tensor leaf(std::initializer_list<double> values) {
  Tensor x = from_data<double>(values, {static_cast<std::int64_t>(values.size())});
  x.set_requires_grad();
  return x;
}

inline std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

/// The text of the exception that `body` throws; "" without one.
template <class E = Error>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace poolgrad::local
