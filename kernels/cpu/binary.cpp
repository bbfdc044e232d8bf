#include <array>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/definition/functors.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"

namespace poolgrad::kernels {
namespace {

template <class F, class T>
void apply(const Block<T>& block) {
  using V = typename LaneType<T>::type;
  map_block<T>(
      block.count, block.out[0], [](V x, V y) { return F::template value<V>(x, y); }, block.in[0], block.in[1]);
}

template <class T>
BlockFunction<T> function_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::add: return &apply<functors::Add, T>;
    case BinaryOp::sub: return &apply<functors::Sub, T>;
    case BinaryOp::mul: return &apply<functors::Mul, T>;
    case BinaryOp::div: return &apply<functors::Div, T>;
    case BinaryOp::pow: return &apply<functors::Pow, T>;
    case BinaryOp::maximum: return &apply<functors::Maximum, T>;
    case BinaryOp::minimum: return &apply<functors::Minimum, T>;
    case BinaryOp::eq: return &apply<functors::Equal, T>;
    case BinaryOp::ne: return &apply<functors::NotEqual, T>;
    case BinaryOp::lt: return &apply<functors::Less, T>;
    case BinaryOp::le: return &apply<functors::LessEqual, T>;
    case BinaryOp::gt: return &apply<functors::Greater, T>;
    case BinaryOp::ge: return &apply<functors::GreaterEqual, T>;
    case BinaryOp::logical_and: return &apply<functors::LogicalAnd, T>;
    default: return &apply<functors::LogicalOr, T>;
  }
}

template <class T>
void blend(const Block<T>& block) {  // a x + b y
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V x, V y) { return a * x + b * y; }, block.in[0], block.in[1]);
}

template <class T>
void choose(const Block<T>& block) {
  using V = typename LaneType<T>::type;
  map_block<T>(
      block.count, block.out[0], [](V condition, V x, V y) { return condition != V{} ? x : y; }, block.in[0],
      block.in[1], block.in[2]);
}

template <class T>
void gated(const Block<T>& block) {
  using V = simd::Vec<T>;
  map_block<T>(
      block.count, block.out[0], [](V gate, V up) { return functors::Silu::value(gate, gate, gate) * up; }, block.in[0],
      block.in[1]);
}

template <class T>
void gated_backward(const Block<T>& block) {
  using V = simd::Vec<T>;
  constexpr int n = simd::lanes<T>;
  for (std::int64_t i = 0; i < block.count; i += n) {
    const std::int64_t left = block.count - i;
    const V grad = simd::load_partial<T>(block.in[0] + i, left), gate = simd::load_partial<T>(block.in[1] + i, left),
            up = simd::load_partial<T>(block.in[2] + i, left);
    const V s = Math<V>::sigmoid(gate);
    simd::store_partial(block.out[0] + i, grad * up * s * (T(1) + gate * (T(1) - s)), left);
    simd::store_partial(block.out[1] + i, grad * gate * s, left);
  }
}

/// Calls f(T{}) for the compute type of a floating dtype.
template <class F>
void with_floating_type(DType dtype, const F& f) {
  if (dtype == DType::f64)
    f(double{});
  else
    f(float{});
}

}  // namespace

void binary(Stream stream, BinaryOp op, View out, View a, View b) {
  if (!runs_on_cpu(stream, to_string(op), traffic(out, a, b))) return;
  with_compute_type(a.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{a, b}, function_of<T>(op));
  });
}

void axpby(Stream stream, View out, double a, View x, double b, View y) {
  if (!runs_on_cpu(stream, "axpby", traffic(out, x, y))) return;
  with_compute_type(x.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{x, y}, &blend<T>, a, b);
  });
}

void where(Stream stream, View out, View cond, View a, View b) {
  if (!runs_on_cpu(stream, "where", traffic(out, cond, a, b))) return;
  with_compute_type(a.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{cond, a, b}, &choose<T>);
  });
}

void silu_mul(Stream stream, View out, View gate, View up) {
  if (!runs_on_cpu(stream, "silu_mul", traffic(out, gate, up))) return;
  with_floating_type(gate.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{gate, up}, &gated<T>);
  });
}

void silu_mul_backward(Stream stream, View dgate, View dup, View grad, View gate, View up) {
  if (!runs_on_cpu(stream, "silu_mul_backward", traffic(dgate, dup, grad, gate, up))) return;
  with_floating_type(gate.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{dgate, dup}, std::array{grad, gate, up}, &gated_backward<T>);
  });
}

std::string_view to_string(BinaryOp op) {
  constexpr std::string_view names[] = {"add", "sub", "mul", "div", "pow", "maximum",     "minimum",   "eq",
                                        "ne",  "lt",  "le",  "gt",  "ge",  "logical_and", "logical_or"};
  return names[static_cast<std::size_t>(op)];
}

}  // namespace poolgrad::kernels
