#include "autograd/norms.h"

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/check.h"
#include "autograd/definition.h"
#include "autograd/record.h"
#include "autograd/reductions.h"
#include "autograd/rows.h"
#include "autograd/unary.h"
#include "kernels/rows.h"

namespace poolgrad {
namespace {

/// weight and bias, where given, are (C), contiguous, and like x.
void check_norm(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Operands operands = {{"x", x}, {"weight", weight}, {"bias", bias}};
  check_floating(name, {{"x", x}});
  if (x.rank() == 0) fail<ShapeError>(name, "x has no dimensions", operands);
  for (const Tensor* parameter : {&weight, &bias}) {
    if (!parameter->defined()) continue;
    if (parameter->device() != x.device()) fail<DeviceError>(name, "operands live on different devices", operands);
    if (parameter->dtype() != x.dtype()) fail<DTypeError>(name, "operands differ in dtype", operands);
    if (parameter->shape() != Shape{x.shape().back()})
      fail<ShapeError>(name, "weight and bias must be as long as the last dimension of x", operands);
  }
}

Tensor statistics_like(const Tensor& x) { return Tensor::empty(row_shape(x), {compute_dtype(x.dtype()), x.device()}); }
Tensor dense_or_undefined(const Tensor& x) { return x.defined() ? dense(x) : x; }
View view_or_null(const Tensor& x) { return x.defined() ? x.view() : View{}; }
/// Room for the gradient of an input, if it is wanted.
Tensor room_for(const BackwardCall& call, int input, const Tensor& like) {
  return call.needs(input) ? Tensor::empty_like(like) : Tensor();
}

/// x * weight + bias, where they are given.
Tensor scaled(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const Tensor product = weight.defined() ? x * weight : x;
  return bias.defined() ? product + bias : product;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon, CallSite) {
  check_norm("layer_norm", x, weight, bias);
  const Tensor input = dense(x), dense_weight = dense_or_undefined(weight), dense_bias = dense_or_undefined(bias);
  Tensor out = Tensor::empty_like(x);
  const Tensor mean_of_rows = statistics_like(x), rstd = statistics_like(x);
  kernels::layer_norm(current_stream(x.device()), out.view(), mean_of_rows.view(), rstd.view(), input.view(),
                      view_or_null(dense_weight), view_or_null(dense_bias), epsilon);
  if (wants_gradient({x, weight, bias}))
    record("layer_norm", {x, weight, bias}, {out},
           [x = SavedTensor(x), weight = SavedTensor(weight), bias = SavedTensor(bias),
            mean_of_rows = SavedTensor(mean_of_rows), rstd = SavedTensor(rstd),
            epsilon](const BackwardCall& call) -> Gradients {
             const std::vector<Tensor> inputs = {x.unpack(), weight.unpack(), bias.unpack()};
             if (grad_enabled())
               return differentiable_gradients(
                   [epsilon](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     const Tensor centred = in[0] - mean(in[0], {-1}, true);
                     const Tensor deviation = rsqrt(mean(square(centred), {-1}, true) + epsilon);
                     return {scaled(centred * deviation, in[1], in[2])};
                   },
                   inputs, {call.gradient()});
             const Tensor values = dense(inputs[0]), gain = dense_or_undefined(inputs[1]);
             Tensor dx = Tensor::empty_like(values), dweight = room_for(call, 1, inputs[1]),
                    dbias = room_for(call, 2, inputs[2]);
             kernels::layer_norm_backward(current_stream(dx.device()), dx.view(), view_or_null(dweight),
                                          view_or_null(dbias), dense(call.gradient()).view(), values.view(),
                                          mean_of_rows.unpack().view(), rstd.unpack().view(), view_or_null(gain));
             return {dx, dweight, dbias};
           });
  return out;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, CallSite) {
  check_norm("rms_norm", x, weight, {});
  const Tensor input = dense(x), dense_weight = dense_or_undefined(weight);
  Tensor out = Tensor::empty_like(x);
  const Tensor rstd = statistics_like(x);
  kernels::rms_norm(current_stream(x.device()), out.view(), rstd.view(), input.view(), view_or_null(dense_weight),
                    epsilon);
  if (wants_gradient({x, weight}))
    record("rms_norm", {x, weight}, {out},
           [x = SavedTensor(x), weight = SavedTensor(weight), rstd = SavedTensor(rstd),
            epsilon](const BackwardCall& call) -> Gradients {
             const std::vector<Tensor> inputs = {x.unpack(), weight.unpack()};
             if (grad_enabled())
               return differentiable_gradients(
                   [epsilon](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     return {scaled(in[0] * rsqrt(mean(square(in[0]), {-1}, true) + epsilon), in[1])};
                   },
                   inputs, {call.gradient()});
             const Tensor values = dense(inputs[0]), gain = dense_or_undefined(inputs[1]);
             Tensor dx = Tensor::empty_like(values), dweight = room_for(call, 1, inputs[1]);
             kernels::rms_norm_backward(current_stream(dx.device()), dx.view(), view_or_null(dweight),
                                        dense(call.gradient()).view(), values.view(), rstd.unpack().view(),
                                        view_or_null(gain));
             return {dx, dweight};
           });
  return out;
}

}  // namespace poolgrad
