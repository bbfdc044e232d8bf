#include <array>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/unary_table.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"

namespace poolgrad::kernels {
namespace {

/// The second input is x or y, whichever the functor reads; g itself where it reads neither.
template <class F, class T>
void apply(const Block<T>& block) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const V a = Lanes::broadcast(block.a), b = Lanes::broadcast(block.b);
  map_block<T>(
      block.count, block.out[0], [a, b](V g, V x) { return F::template gradient<V>(g, x, x, a, b); }, block.in[0],
      block.in[1]);
}

}  // namespace

void unary_backward(Stream stream, UnaryOp op, View dx, View grad, View x, View y, double a, double b) {
  with_functor(op, [&]<class F>(F) {
    static_assert(!(F::reads_input && F::reads_output));
    const View& point = F::reads_input ? x : (F::reads_output ? y : grad);
    if (!runs_on_cpu(stream, to_string(op), traffic(dx, grad, point))) return;
    const auto run = [&]<class T>(T) {
      for_each_block<T>(std::array{dx}, std::array{grad, point}, &apply<F, T>, a, b);
    };
    if (dx.dtype == DType::f64)
      run(double{});
    else
      run(float{});
  });
}

bool needs_input(UnaryOp op) {
  return with_functor(op, []<class F>(F) { return F::reads_input; });
}
bool needs_output(UnaryOp op) {
  return with_functor(op, []<class F>(F) { return F::reads_output; });
}

}  // namespace poolgrad::kernels
