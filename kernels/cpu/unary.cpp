#include <array>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/definition/unary.h"

namespace poolgrad::kernels {
namespace {

template <class F, class T>
void apply(const Block<T>& block) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V x) { return F::template value<V>(x, a, b); }, block.in[0]);
}

/// The second input is x or y, whichever the functor reads.
template <class F, class T>
void apply_gradient(const Block<T>& block) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V g, V x) { return F::template gradient<V>(g, x, x, a, b); }, block.in[0],
      block.in[1]);
}

}  // namespace

void on_cpu::unary(Stream, UnaryOp op, const View& out, const View& x, double a, double b) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    with_functor(op, [&]<class F>(F) {
      if constexpr (std::is_floating_point_v<T> || F::on_integers)
        for_each_block<T>(std::array{out}, std::array{x}, &apply<F, T>, a, b);
    });
  });
}

void on_cpu::unary_backward(Stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y,
                            double a, double b) {
  with_functor(op, [&]<class F>(F) {
    static_assert(!(F::reads_input && F::reads_output));
    const View& point = F::reads_input ? x : (F::reads_output ? y : grad);
    with_floating_compute_type(dx.dtype, [&]<class T>(T) {
      for_each_block<T>(std::array{dx}, std::array{grad, point}, &apply_gradient<F, T>, a, b);
    });
  });
}

}  // namespace poolgrad::kernels
