#include "autograd/operators/rows.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/unary.h"
#include "kernels/elementwise.h"
#include "kernels/rows.h"

namespace poolgrad {
namespace {

using RowKernel = void (*)(Stream, const View&, const View&);
using RowBackwardKernel = void (*)(Stream, const View&, const View&, const View&);

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

/// A function of rows, its gradient from the result and the gradient of the result, and its definition in
/// differentiable operators.
struct RowFunction {
  RowKernel kernel;
  RowBackwardKernel backward;
  Tensor (*differential)(const Tensor& grad, const Tensor& out);
};

Tensor record_rows(const char* name, const RowFunction& f, const Tensor& x, std::int64_t dim,
                   std::source_location at = std::source_location::current()) {
  if (const auto cast = autocast(name, {x}); !cast.empty()) return record_rows(name, f, cast[0], dim, at);
  check_floating(name, {{"x", x}});
  if (x.dim() == 0) return as_vector(x, [&](const Tensor& one) { return record_rows(name, f, one, dim, at); });
  const int axis = checked_axis(name, x, dim);
  if (axis != x.dim() - 1) return moved_from_end(record_rows(name, f, moved_to_end(x, axis), -1, at), axis);
  Tensor out = computed(f.kernel, x, at);
  if (wants_gradient({x}))
    record(name, {x}, {out}, recipe([f, at](const Tensor& rows) { return computed(f.kernel, rows, at); }),
           [f, out = SavedTensor::output(out)](const BackwardCall& call) -> Gradients {
             const Tensor &grad = call.gradient(), y = out.unpack();
             return {grad_enabled() ? f.differential(grad, y) : gradient(f.backward, grad, y)};
           });
  return out;
}

}  // namespace

Tensor softmax(TensorArg x, std::int64_t dim) {
  const auto differential = [](const Tensor& grad, const Tensor& y) { return y * (grad - sum(grad * y, {-1}, true)); };
  return record_rows("softmax", {kernels::softmax, kernels::softmax_backward, differential}, x, dim);
}

Tensor log_softmax(TensorArg x, std::int64_t dim) {
  const auto differential = [](const Tensor& grad, const Tensor& y) { return grad - exp(y) * sum(grad, {-1}, true); };
  return record_rows("log_softmax", {kernels::log_softmax, kernels::log_softmax_backward, differential}, x, dim);
}

namespace {

/// Checks that weight and bias, if defined, are (C), contiguous, and like x.
void check_norm(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Operands operands = {{"x", x}, {"weight", weight}, {"bias", bias}};
  check_floating(name, {{"x", x}});
  if (x.dim() == 0) fail<ShapeError>(name, "x has no dimensions", operands);
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
/// Returns memory for the gradient of an input, if it is wanted.
Tensor room_for(const BackwardCall& call, int input, const Tensor& like) {
  return call.needs(input) ? Tensor::empty_like(like) : Tensor();
}

/// Returns rows of x divided by the root of their mean square plus epsilon, in differentiable operators. Rows are first
/// divided by a power of two, so that squares neither overflow nor underflow.
Tensor normalized(const Tensor& x, double epsilon, bool centered) {
  Tensor scale;
  {
    const NoGradGuard guard;
    if (x.shape().back() == 0) return x;
    scale = maximum(max(abs(x), {-1}, true), std::sqrt(epsilon));
    kernels::unary(current_stream(x.device()), kernels::UnaryOp::power_of_two, scale.view(), scale.view());
  }
  const Tensor scaled_x = x / scale, rows = centered ? scaled_x - mean(scaled_x, {-1}, true) : scaled_x;
  return rows * rsqrt(mean(square(rows), {-1}, true) + epsilon / scale / scale);
}

/// Returns x * weight + bias; undefined operands are left out.
Tensor scaled(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
  const Tensor product = weight.defined() ? x * weight : x;
  return bias.defined() ? product + bias : product;
}

}  // namespace

Tensor layer_norm(TensorArg x, const Tensor& weight, const Tensor& bias, double epsilon) {
  if (const auto cast = autocast("layer_norm", {x, weight, bias}); !cast.empty())
    return layer_norm(cast[0], cast[1], cast[2], epsilon);
  check_norm("layer_norm", x, weight, bias);
  const Tensor input = dense(x), dense_weight = dense_or_undefined(weight), dense_bias = dense_or_undefined(bias);
  Tensor out = Tensor::empty_like(x);
  const Tensor mean_of_rows = statistics_like(x), rstd = statistics_like(x);
  kernels::layer_norm(current_stream(x->device()), out.view(), mean_of_rows.view(), rstd.view(), input.view(),
                      view_or_none(dense_weight), view_or_none(dense_bias), epsilon);
  if (wants_gradient({x, weight, bias}))
    record("layer_norm", {x, weight, bias}, {out},
           recipe([epsilon](const Tensor& rows, const Tensor& gain, const Tensor& shift) {
             return layer_norm(rows, gain, shift, epsilon);
           }),
           [x = SavedTensor(x), weight = SavedTensor(weight), bias = SavedTensor(bias),
            mean_of_rows = SavedTensor(mean_of_rows), rstd = SavedTensor(rstd),
            epsilon](const BackwardCall& call) -> Gradients {
             const std::vector<Tensor> inputs = {x.unpack(), weight.unpack(), bias.unpack()};
             if (grad_enabled())
               return differentiable_gradients(
                   [epsilon](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     const Tensor wide = to(in[0], compute_dtype(in[0].dtype()));
                     return {scaled(to(normalized(wide, epsilon, /*centered=*/true), in[0].dtype()), in[1], in[2])};
                   },
                   inputs, {call.gradient()});
             const Tensor values = dense(inputs[0]), gain = dense_or_undefined(inputs[1]);
             Tensor dx = Tensor::empty_like(values), dweight = room_for(call, 1, inputs[1]),
                    dbias = room_for(call, 2, inputs[2]);
             kernels::layer_norm_backward(current_stream(dx.device()), dx.view(), view_or_none(dweight),
                                          view_or_none(dbias), dense(call.gradient()).view(), values.view(),
                                          mean_of_rows.unpack().view(), rstd.unpack().view(), view_or_none(gain));
             return {dx, dweight, dbias};
           });
  return out;
}

Tensor rms_norm(TensorArg x, const Tensor& weight, double epsilon) {
  if (const auto cast = autocast("rms_norm", {x, weight}); !cast.empty()) return rms_norm(cast[0], cast[1], epsilon);
  check_norm("rms_norm", x, weight, {});
  const Tensor input = dense(x), dense_weight = dense_or_undefined(weight);
  Tensor out = Tensor::empty_like(x);
  const Tensor rstd = statistics_like(x);
  kernels::rms_norm(current_stream(x->device()), out.view(), rstd.view(), input.view(), view_or_none(dense_weight),
                    epsilon);
  if (wants_gradient({x, weight}))
    record("rms_norm", {x, weight}, {out},
           recipe([epsilon](const Tensor& rows, const Tensor& gain) { return rms_norm(rows, gain, epsilon); }),
           [x = SavedTensor(x), weight = SavedTensor(weight), rstd = SavedTensor(rstd),
            epsilon](const BackwardCall& call) -> Gradients {
             const std::vector<Tensor> inputs = {x.unpack(), weight.unpack()};
             if (grad_enabled())
               return differentiable_gradients(
                   [epsilon](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     const Tensor wide = to(in[0], compute_dtype(in[0].dtype()));
                     return {scaled(to(normalized(wide, epsilon, /*centered=*/false), in[0].dtype()), in[1])};
                   },
                   inputs, {call.gradient()});
             const Tensor values = dense(inputs[0]), gain = dense_or_undefined(inputs[1]);
             Tensor dx = Tensor::empty_like(values), dweight = room_for(call, 1, inputs[1]);
             kernels::rms_norm_backward(current_stream(dx.device()), dx.view(), view_or_none(dweight),
                                        dense(call.gradient()).view(), values.view(), rstd.unpack().view(),
                                        view_or_none(gain));
             return {dx, dweight};
           });
  return out;
}

namespace {

/// Writes the first `heads` heads rotated, and the others unchanged, to `out`; out may be x.
void rotate(const Tensor& out, const Tensor& x, std::int64_t heads, const kernels::RotaryPositions& positions,
            const kernels::RotaryFrequencies& frequencies, bool inverse) {
  const Stream stream = current_stream(x.device());
  const Tensor input = x.strides().back() == 1 ? x : x.copy();
  const auto part = [](const Tensor& all, std::int64_t begin, std::int64_t end) {
    return all.alias(sliced(all.geometry(), 2, begin, end, 1)).view();
  };
  const std::int64_t all = x.shape()[2];
  kernels::rope(stream, part(out, 0, heads), part(input, 0, heads), positions, frequencies, inverse);
  if (heads < all && !out.is_same(x)) kernels::copy(stream, part(out, heads, all), part(input, heads, all));
}

Tensor rotated(const Tensor& x, std::int64_t heads, const kernels::RotaryPositions& positions,
               const kernels::RotaryFrequencies& frequencies, bool inverse) {
  Tensor out = Tensor::empty_like(x);
  rotate(out, x, heads, positions, frequencies, inverse);
  if (wants_gradient({x}))
    record("rope", {x}, {out}, recipe([heads, positions, frequencies, inverse](const Tensor& in) {
             return rotated(in, heads, positions, frequencies, inverse);
           }),
           [heads, positions, frequencies, inverse](const BackwardCall& call) -> Gradients {
             if (grad_enabled()) return {rotated(call.gradient(), heads, positions, frequencies, !inverse)};
             Tensor dx = call.place_over_gradient();
             rotate(dx, call.gradient(), heads, positions, frequencies, !inverse);
             return {dx};
           });
  return out;
}

/// Returns the frequencies for vectors of `size` elements.
kernels::RotaryFrequencies frequencies_of(const RopeOptions& options, std::int64_t size) {
  kernels::RotaryFrequencies result(options.base);
  switch (options.scaling) {
    case RopeScaling::none: break;
    case RopeScaling::ntk:
      if (size > 2) result.base *= std::pow(options.factor, static_cast<double>(size) / static_cast<double>(size - 2));
      break;
    case RopeScaling::linear: result.stretch = 1 / options.factor; break;
    case RopeScaling::yarn: {
      // Returns the fractional pair index that turns this many times in the trained context.
      const auto pair_of = [&](double turns) {
        const double longest = static_cast<double>(options.trained_context) / (2 * std::numbers::pi * turns);
        return static_cast<double>(size) * std::log(longest) / (2 * std::log(options.base));
      };
      result.stretch = 1 / options.factor;
      result.kept = std::max(0.0, std::floor(pair_of(32)));
      result.stretched = std::min(static_cast<double>(size - 1), std::ceil(pair_of(1)));
      result.stretched = std::max(result.stretched, result.kept + 0.001);  // avoids a division by 0
      result.magnitude = 0.1 * std::log(options.factor) + 1;
    }
  }
  return result;
}

Tensor checked_rope(const Tensor& x, std::int64_t heads, const kernels::RotaryPositions& positions,
                    const RopeOptions& options) {
  check_floating("rope", {{"x", x}});
  if (x.dim() != 4 || x.shape()[3] % 2 != 0) fail<ShapeError>("rope", "needs (B, T, H, D) with even D", {{"x", x}});
  if (heads < 0 || heads > x.shape()[2])
    fail<ValueError>("rope", "cannot rotate " + std::to_string(heads) + " heads", {{"x", x}});
  if (!(options.base > 0.0)) fail<ValueError>("rope", "the base must be positive", {{"x", x}});
  if (!(options.factor >= 1.0)) fail<ValueError>("rope", "factor is below 1", {{"x", x}});
  if (options.scaling == RopeScaling::yarn && options.trained_context < 1)
    fail<ValueError>("rope", "yarn needs trained_context", {{"x", x}});
  return rotated(x, heads, positions, frequencies_of(options, x.shape()[3]), /*inverse=*/false);
}

std::int64_t all_heads(const Tensor& x) { return x.defined() && x.dim() == 4 ? x.shape()[2] : 0; }

void check_positions(const Tensor& x, const kernels::PositionMap& positions) {
  if (x.defined() && x.dim() == 4 && x.shape()[1] != positions.count)
    fail<ShapeError>("rope", "there are " + std::to_string(positions.count) + " positions", {{"x", x}});
}

}  // namespace

Tensor rope_first_heads(TensorArg x, std::int64_t heads, std::int64_t position, const RopeOptions& options) {
  return checked_rope(x, heads, position, options);
}

Tensor rope_first_heads(TensorArg x, std::int64_t heads, const kernels::PositionMap& positions,
                        const RopeOptions& options) {
  check_positions(x, positions);
  return checked_rope(x, heads, positions, options);
}

Tensor rope(TensorArg x, std::int64_t position, const RopeOptions& options) {
  return checked_rope(x, all_heads(x), position, options);
}

Tensor rope(TensorArg x, const kernels::PositionMap& positions, const RopeOptions& options) {
  check_positions(x, positions);
  return checked_rope(x, all_heads(x), positions, options);
}

}  // namespace poolgrad
