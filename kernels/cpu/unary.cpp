#include <array>
#include <string>

#include "allocator/error.h"
#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/unary_table.h"
#include "kernels/dispatch.h"
#include "kernels/elementwise.h"

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

}  // namespace

void unary(Stream stream, UnaryOp op, View out, View x, double a, double b) {
  const std::string_view name = to_string(op);
  if (!runs_on_cpu(stream, name, traffic(out, x))) return;
  with_compute_type(x.dtype, [&]<class T>(T) {
    with_functor(op, [&]<class F>(F) {
      if constexpr (std::is_integral_v<T> && !F::on_integers)
        throw DTypeError("[" + std::string(name) + "] needs a floating dtype: x " + std::string(to_string(x.dtype)));
      else
        for_each_block<T>(std::array{out}, std::array{x}, &apply<F, T>, a, b);
    });
  });
}

std::string_view to_string(UnaryOp op) {
  constexpr std::string_view names[] = {
      "neg",         "abs",    "sign",      "square",     "sqrt",     "rsqrt", "reciprocal", "exp",
      "expm1",       "log",    "log1p",     "sin",        "cos",      "tanh",  "sigmoid",    "erf",
      "relu",        "gelu",   "gelu_tanh", "silu",       "softplus", "floor", "ceil",       "round",
      "logical_not", "is_nan", "is_finite", "leaky_relu", "clamp",    "power", "affine",     "quotient"};
  return names[static_cast<std::size_t>(op)];
}

}  // namespace poolgrad::kernels
