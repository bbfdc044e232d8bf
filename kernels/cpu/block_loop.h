// The loop of every elementwise kernel: operands of any layout and dtype, cut into blocks of contiguous compute-type
// values. Internal to kernels/cpu.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/simd.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// What a block function computes: `count` <= block_size elements of every operand. An output may be the same memory as
/// an input, element for element. `a` and `b` are the parameters of the operation.
template <class T>
struct Block {
  const T* in[3];
  T* out[2];
  std::int64_t count;
  T a, b;
};
template <class T>
using BlockFunction = void (*)(const Block<T>&);

/// Calls `function` for all blocks of the operands, which share a shape, on several threads. T is float, double or
/// int64_t: the compute type.
template <class T>
void for_each_block(std::span<const View> outputs, std::span<const View> inputs, BlockFunction<T> function,
                    double a = 0, double b = 0);

/// Calls body(i, vectors...) for whole vectors and the rest of [0, count): body maps lanes to lanes.
///   map_block<T>(block.count, block.out[0], [](auto x) { return -x; }, block.in[0]);
template <class T, class Body, class... In>
inline void map_block(std::int64_t count, T* out, const Body& body, const In*... in) {
  if constexpr (std::is_integral_v<T>) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = body(in[i]...);
  } else {
    constexpr int n = simd::lanes<T>;
    std::int64_t i = 0;
    for (; i + n <= count; i += n) simd::store(out + i, body(simd::load<T>(in + i)...));
    if (i < count) simd::store_partial(out + i, body(simd::load_partial<T>(in + i, count - i)...), count - i);
  }
}

/// The type on which map_block's body works: a vector, or int64_t itself.
template <class T>
struct LaneType {
  using type = simd::Vec<T>;
  static type broadcast(T x) { return simd::broadcast(x); }
};
template <>
struct LaneType<std::int64_t> {
  using type = std::int64_t;
  static type broadcast(std::int64_t x) { return x; }
};

}  // namespace poolgrad::kernels
