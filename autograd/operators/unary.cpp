#include "autograd/operators/unary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/random.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using kernels::UnaryOp;

Tensor zero_where(const Tensor& condition, const Tensor& x) { return masked_fill(x, condition, 0.0); }

/// Returns grad * op'(x) in differentiable operators, for create_graph. Reads x or y = op(x) as the kernel does.
Tensor derivative(UnaryOp op, const Tensor& grad, const Tensor& x, const Tensor& y, double a, double b) {
  constexpr double pi = std::numbers::pi;
  if (is_half(grad.dtype()) && (x.defined() || y.defined())) {  // intermediate results may overflow f16
    const auto wide = [](const Tensor& operand) { return operand.defined() ? to(operand, DType::f32) : operand; };
    return to(derivative(op, wide(grad), wide(x), wide(y), a, b), grad.dtype());
  }
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
    case UnaryOp::log2: return grad / (x * std::numbers::ln2);
    case UnaryOp::log10: return grad / (x * std::numbers::ln10);
    case UnaryOp::exp2: return grad * y * std::numbers::ln2;
    case UnaryOp::sin: return grad * cos(x);
    case UnaryOp::cos: return -(grad * sin(x));
    case UnaryOp::tan: return grad * (square(y) + 1.0);
    case UnaryOp::asin: return grad * rsqrt((1.0 - x) * (x + 1.0));
    case UnaryOp::acos: return -(grad * rsqrt((1.0 - x) * (x + 1.0)));
    case UnaryOp::atan: return grad / (square(x) + 1.0);
    case UnaryOp::sinh: return grad * cosh(x);
    case UnaryOp::cosh: return grad * sinh(x);
    case UnaryOp::tanh: return grad * (1.0 - square(y));
    case UnaryOp::sigmoid: return grad * (y - square(y));
    case UnaryOp::erf: return grad * exp(-square(x)) * (2.0 / std::sqrt(pi));
    case UnaryOp::softplus: return grad * sigmoid(x);
    case UnaryOp::power: return a == 0.0 ? zeros_like(grad) : grad * pow(x, a - 1.0) * a;
    case UnaryOp::relu: return zero_where(x <= 0.0, grad);
    case UnaryOp::leaky_relu: return where(x > 0.0, grad, grad * a);
    case UnaryOp::clamp: return zero_where((x < a) | (x > b), grad);
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
    case UnaryOp::mish: {
      const Tensor t = tanh(softplus(x));
      return grad * (t + x * sigmoid(x) * (1.0 - square(t)));
    }
    case UnaryOp::elu: return where(x > 0.0, grad, grad * a * exp(zero_where(x > 0.0, x)));
    default: return zeros_like(grad);  // piecewise constant
  }
}

void check_domain(const char* name, const Tensor& x, Domain domain) {
  check_devices(name, {{"x", x}});
  if (domain == Domain::floating && !is_floating(x.dtype()))
    fail<DTypeError>(name, "needs a floating dtype", {{"x", x}});
  if (domain == Domain::numbers && x.dtype() == DType::boolean)
    fail<DTypeError>(name, "bool is not a numeric dtype", {{"x", x}});
}

Tensor computed(UnaryOp op, const Tensor& x, double a, double b,
                std::source_location at = std::source_location::current()) {
  Tensor out = Tensor::empty_like(x, at);
  kernels::unary(current_stream(x.device()), op, out.view(), x.view(), a, b);
  return out;
}

}  // namespace

Tensor record_unary(const char* name, UnaryOp op, const Tensor& x, double a, double b, Domain domain,
                    std::source_location at) {
  if (const auto cast = autocast(name, {x}); !cast.empty()) return record_unary(name, op, cast[0], a, b, domain, at);
  check_domain(name, x, domain);
  Tensor out = computed(op, x, a, b, at);
  if (wants_gradient({x})) {
    const SavedTensor input = kernels::needs_input(op) ? SavedTensor(x) : SavedTensor();
    const SavedTensor output = kernels::needs_output(op) ? SavedTensor::output(out) : SavedTensor();
    record(name, {x}, {out}, recipe([op, a, b](const Tensor& operand) { return computed(op, operand, a, b); }),
           [op, a, b, input, output](const BackwardCall& call) -> Gradients {
             const Tensor& grad = call.gradient();
             const Tensor saved_x = input.defined() ? input.unpack() : Tensor();
             const Tensor saved_y = output.defined() ? output.unpack() : Tensor();
             if (grad_enabled()) return {derivative(op, grad, saved_x, saved_y, a, b)};
             Tensor dx = call.place_over_gradient();
             kernels::unary_backward(current_stream(grad.device()), op, dx.view(), grad.view(),
                                     saved_x.defined() ? saved_x.view() : View{},
                                     saved_y.defined() ? saved_y.view() : View{}, a, b);
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

using kernels::UnaryOp;

Tensor neg(TensorArg x) { return record_unary("neg", UnaryOp::neg, x, 0, 0, Domain::numbers); }
Tensor abs(TensorArg x) { return record_unary("abs", UnaryOp::abs, x, 0, 0, Domain::numbers); }
Tensor sign(TensorArg x) { return record_unary("sign", UnaryOp::sign, x, 0, 0, Domain::numbers); }
Tensor square(TensorArg x) { return record_unary("square", UnaryOp::square, x, 0, 0, Domain::numbers); }
Tensor sqrt(TensorArg x) { return record_unary("sqrt", UnaryOp::sqrt, x); }
Tensor rsqrt(TensorArg x) { return record_unary("rsqrt", UnaryOp::rsqrt, x); }
Tensor reciprocal(TensorArg x) { return record_unary("reciprocal", UnaryOp::reciprocal, x); }
Tensor exp(TensorArg x) { return record_unary("exp", UnaryOp::exp, x); }
Tensor expm1(TensorArg x) { return record_unary("expm1", UnaryOp::expm1, x); }
Tensor log(TensorArg x) { return record_unary("log", UnaryOp::log, x); }
Tensor log1p(TensorArg x) { return record_unary("log1p", UnaryOp::log1p, x); }
Tensor log2(TensorArg x) { return record_unary("log2", UnaryOp::log2, x); }
Tensor log10(TensorArg x) { return record_unary("log10", UnaryOp::log10, x); }
Tensor exp2(TensorArg x) { return record_unary("exp2", UnaryOp::exp2, x); }
Tensor sin(TensorArg x) { return record_unary("sin", UnaryOp::sin, x); }
Tensor cos(TensorArg x) { return record_unary("cos", UnaryOp::cos, x); }
Tensor tan(TensorArg x) { return record_unary("tan", UnaryOp::tan, x); }
Tensor asin(TensorArg x) { return record_unary("asin", UnaryOp::asin, x); }
Tensor acos(TensorArg x) { return record_unary("acos", UnaryOp::acos, x); }
Tensor atan(TensorArg x) { return record_unary("atan", UnaryOp::atan, x); }
Tensor sinh(TensorArg x) { return record_unary("sinh", UnaryOp::sinh, x); }
Tensor cosh(TensorArg x) { return record_unary("cosh", UnaryOp::cosh, x); }
Tensor tanh(TensorArg x) { return record_unary("tanh", UnaryOp::tanh, x); }
Tensor sigmoid(TensorArg x) { return record_unary("sigmoid", UnaryOp::sigmoid, x); }
Tensor erf(TensorArg x) { return record_unary("erf", UnaryOp::erf, x); }
Tensor relu(TensorArg x) { return record_unary("relu", UnaryOp::relu, x); }
Tensor leaky_relu(TensorArg x, double slope) { return record_unary("leaky_relu", UnaryOp::leaky_relu, x, slope); }
Tensor silu(TensorArg x) { return record_unary("silu", UnaryOp::silu, x); }
Tensor mish(TensorArg x) { return record_unary("mish", UnaryOp::mish, x); }
Tensor elu(TensorArg x, double alpha) { return record_unary("elu", UnaryOp::elu, x, alpha); }
Tensor softplus(TensorArg x) { return record_unary("softplus", UnaryOp::softplus, x); }
Tensor floor(TensorArg x) { return record_unary("floor", UnaryOp::floor, x, 0, 0, Domain::numbers); }
Tensor ceil(TensorArg x) { return record_unary("ceil", UnaryOp::ceil, x, 0, 0, Domain::numbers); }
Tensor round(TensorArg x) { return record_unary("round", UnaryOp::round, x, 0, 0, Domain::numbers); }
Tensor isnan(TensorArg x) { return unary_test("isnan", UnaryOp::isnan, x); }
Tensor isfinite(TensorArg x) { return unary_test("isfinite", UnaryOp::isfinite, x); }

Tensor gelu(TensorArg x, GeluKind kind) {
  return record_unary("gelu", kind == GeluKind::exact ? UnaryOp::gelu : UnaryOp::gelu_tanh, x);
}

Tensor clamp(TensorArg x, double low, double high) {
  if (!(low <= high))
    fail<ValueError>("clamp", fmt::format("the lower bound {} is above the upper {}", low, high), {{"x", x}});
  if (x->defined()) {  // bounds rounded to the dtype, as in maximum(x, number)
    low = rounded(x->dtype(), low);
    high = rounded(x->dtype(), high);
  }
  if (x->defined() && !is_floating(x->dtype())) {
    // Integers are compared as i64, which has no infinity. No double equals its largest number.
    low = std::max(low, -0x1p63);
    if (std::isinf(high)) {
      if (x->dtype() == DType::i64) return maximum(*x, low);
      high = 0x1p62;
    }
    check_whole("clamp", x, {low, high});
    if (x->dtype() != DType::i64) {
      const bool byte = x->dtype() == DType::u8;
      const double first = byte ? 0.0 : -0x1p31, last = byte ? 255.0 : 0x1p31 - 1;
      low = std::clamp(low, first, last);
      high = std::clamp(high, first, last);
    }
  }
  return record_unary("clamp", UnaryOp::clamp, x, low, high, Domain::numbers);
}

Tensor clamp(TensorArg x, const Tensor& low, const Tensor& high) {
  check_devices("clamp", {{"x", x}});
  const Tensor raised = low.defined() ? maximum(*x, low) : *x;
  return high.defined() ? minimum(raised, high) : raised;
}

Tensor glu(TensorArg x, std::int64_t dim) {
  check_devices("glu", {{"x", x}});
  const int axis = checked_axis("glu", x, dim);
  if (x->shape()[axis] % 2 != 0)
    fail<ShapeError>("glu", fmt::format("dimension {} does not divide into two halves", axis), {{"x", x}});
  const std::vector<Tensor> halves = split(*x, 2, axis);
  return halves[0] * sigmoid(halves[1]);
}

Tensor silu_mul(TensorArg gate, const Tensor& up) {
  if (const auto cast = autocast("silu_mul", {gate, up}); !cast.empty()) return silu_mul(cast[0], cast[1]);
  check_floating("silu_mul", {{"gate", gate}, {"up", up}});
  if (gate->shape() != up.shape()) fail<ShapeError>("silu_mul", "shapes differ", {{"gate", gate}, {"up", up}});
  Tensor out = Tensor::empty_like(gate);
  kernels::silu_mul(current_stream(gate->device()), out.view(), gate->view(), up.view());
  if (wants_gradient({gate, up}))
    record("silu_mul", {gate, up}, {out}, recipe([](const Tensor& g, const Tensor& u) { return silu_mul(g, u); }),
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

namespace {

/// Returns runs of consecutive positions, each with its first position.
std::vector<kernels::PositionMap::Piece> runs_of(const kernels::PositionMap& map) {
  std::vector<kernels::PositionMap::Piece> runs;
  for (int n = 0; n < 2; ++n) {
    const auto piece = map.piece(n);
    if (map.stride == 1 && piece.count > 0) runs.push_back(piece);
    for (std::int64_t i = 0; i < piece.count && map.stride != 1; ++i)
      runs.push_back({piece.row + i, 1, piece.position + i * map.stride});
  }
  return runs;
}

/// Linear in x for a given key, so its gradient is the same operator. `key` begins the range of the whole tensor, and x
/// is its `part`.
Tensor dropped(const Tensor& x, double p, kernels::RandomKey key, SequencePart part) {
  Tensor out = Tensor::empty_like(x);
  const Stream stream = current_stream(x.device());
  if (part.whole == 0)
    kernels::dropout(stream, key, out.view(), x.view(), p);
  else if (x.numel() > 0)
    for (std::int64_t b = 0; b < x.size(0); ++b)
      for (const kernels::PositionMap::Piece& run : runs_of(part.map(x.size(1)))) {
        const auto of_run = [&](const Tensor& y) {
          const Geometry entry = sliced(y.geometry(), 0, b, b + 1, 1);
          return y.alias(sliced(entry, 1, run.row, run.row + run.count, 1)).view();
        };
        const std::int64_t row = x.numel() / x.size(0) / x.size(1);  // numbers per position
        kernels::RandomKey own = key;
        own.offset += static_cast<std::uint64_t>(((part.first_row + b) * part.whole + run.position) * row);
        kernels::dropout(stream, own, of_run(out), of_run(x), p);
      }
  if (wants_gradient({x}))
    record("dropout", {x}, {out},
           recipe([p, key, part](const Tensor& operand) { return dropped(operand, p, key, part); }),
           [p, key, part](const BackwardCall& call) -> Gradients { return {dropped(call.gradient(), p, key, part)}; });
  return out;
}

void check_dropout(const Tensor& x, double p) {
  check_floating("dropout", {{"x", x}});
  if (!(p >= 0.0 && p < 1.0))
    fail<ValueError>("dropout", fmt::format("probability {} is outside [0, 1)", p), {{"x", x}});
}

}  // namespace

Tensor dropout(TensorArg x, double p, Generator& generator) {
  check_dropout(x, p);
  if (p == 0.0) return x;
  return dropped(x, p, generator.take(x->numel()), {});
}

Tensor dropout(TensorArg x, double p, Generator& generator, SequencePart part) {
  check_dropout(x, p);
  const std::int64_t rows = x->dim() < 2 || part.rows > 0 ? part.rows : x->size(0);
  const kernels::PositionMap map = part.map(x->dim() < 2 ? 0 : x->size(1));
  if (x->dim() < 2 || map.count != x->size(1) || map.position(0) < 0 ||
      (map.count > 0 && map.position(map.count - 1) >= part.whole))
    fail<ShapeError>("dropout",
                     "dimension 1 does not fit from position " + std::to_string(map.position(0)) + " on within " +
                         std::to_string(part.whole),
                     {{"x", x}});
  if (part.first_row < 0 || part.first_row + x->size(0) > rows)
    fail<ShapeError>(
        "dropout",
        "dimension 0 does not fit from row " + std::to_string(part.first_row) + " on within " + std::to_string(rows),
        {{"x", x}});
  if (p == 0.0) return x;
  std::int64_t numbers = rows * part.whole;
  for (std::int64_t d = 2; d < x->dim(); ++d) numbers *= x->size(static_cast<int>(d));
  return dropped(x, p, generator.take(numbers), part);
}

}  // namespace poolgrad
