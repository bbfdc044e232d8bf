#include <array>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/functors/elementwise.h"

namespace poolgrad::kernels {

namespace {

template <class F, class T>
void apply_unary(const Block<T>& block) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V x) { return F::template on<V>::value(x, a, b); }, block.in[0]);
}

/// The second input is x or y, according to the functor.
template <class F, class T>
void apply_gradient(const Block<T>& block) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V g, V x) { return F::template on<V>::gradient(g, x, x, a, b); }, block.in[0],
      block.in[1]);
}

}  // namespace

void on_cpu::unary(Stream, UnaryOp op, const View& out, const View& x, double a, double b) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    with_functor(op, [&]<class F>(F) {
      if constexpr (std::is_floating_point_v<T> || F::template on<T>::on_integers)
        for_each_block<T>(std::array{out}, std::array{x}, &apply_unary<F, T>, a, b);
    });
  });
}

void on_cpu::unary_backward(Stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y,
                            double a, double b) {
  with_functor(op, [&]<class F>(F) {
    using Any = typename F::template on<float>;
    static_assert(!(Any::reads_input && Any::reads_output));
    const View& point = Any::reads_input ? x : (Any::reads_output ? y : grad);
    with_floating_compute_type(dx.dtype, [&]<class T>(T) {
      for_each_block<T>(std::array{dx}, std::array{grad, point}, &apply_gradient<F, T>, a, b);
    });
  });
}

namespace {

template <class F, class T>
void apply_binary(const Block<T>& block) {
  using V = typename LaneType<T>::type;
  map_block<T>(
      block.count, block.out[0], [](V x, V y) { return F::template on<V>::value(x, y); }, block.in[0], block.in[1]);
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
      block.count, block.out[0], [](V gate, V up) { return functors::Silu<V>::value(gate, gate, gate) * up; },
      block.in[0], block.in[1]);
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

}  // namespace

void on_cpu::binary(Stream, BinaryOp op, const View& out, const View& a, const View& b) {
  with_compute_type(a.dtype, [&]<class T>(T) {
    const auto function = with_functor(op, []<class F>(F) -> BlockFunction<T> {
      if constexpr (std::is_floating_point_v<T> || takes_integers<F>())
        return &apply_binary<F, T>;
      else
        return nullptr;
    });
    for_each_block<T>(std::array{out}, std::array{a, b}, function);
  });
}

void on_cpu::axpby(Stream, const View& out, double a, const View& x, double b, const View& y) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{x, y}, &blend<T>, a, b);
  });
}

void on_cpu::where(Stream, const View& out, const View& cond, const View& a, const View& b) {
  with_compute_type(a.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{cond, a, b}, &choose<T>);
  });
}

void on_cpu::silu_mul(Stream, const View& out, const View& gate, const View& up) {
  with_floating_compute_type(gate.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{out}, std::array{gate, up}, &gated<T>);
  });
}

void on_cpu::silu_mul_backward(Stream, const View& dgate, const View& dup, const View& grad, const View& gate,
                               const View& up) {
  with_floating_compute_type(gate.dtype, [&]<class T>(T) {
    for_each_block<T>(std::array{dgate, dup}, std::array{grad, gate, up}, &gated_backward<T>);
  });
}

}  // namespace poolgrad::kernels
