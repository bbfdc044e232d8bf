// The loop of every elementwise kernel. It splits operands of any layout and dtype into blocks of contiguous values in
// the compute type. Internal to kernels/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd/simd.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Arguments of a block function: `count` <= block_size elements of every operand. An output may alias an input,
/// element for element. `a` and `b` are the parameters of the operation.
template <class T>
struct Block {
  const T* in[3];
  T* out[2];
  std::int64_t count;
  T a, b;
};
template <class T>
using BlockFunction = void (*)(const Block<T>&);

/// Calls `function` for all blocks of the operands, which share a shape, on several threads. T is the compute type:
/// float, double or int64_t.
template <class T>
void for_each_block(std::span<const View> outputs, std::span<const View> inputs, BlockFunction<T> function,
                    double a = 0, double b = 0);

/// out[i] = body(in[i]...) for i < count; body maps lanes to lanes.
///   map_block<T>(block.count, block.out[0], [](auto x) { return -x; }, block.in[0]);
/// The elements after the last whole vector use the same loop on a padded copy. Otherwise the compiler may fuse a
/// product and a sum in one place and not in another, and the bits of a result would depend on its position.
template <class T, class Body, class... In>
inline void map_block(std::int64_t count, T* out, const Body& body, const In*... in) {
  if constexpr (std::is_integral_v<T>) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < count; ++i) out[i] = body(in[i]...);
  } else {
    constexpr std::int64_t n = simd::lanes<T>;
    constexpr std::size_t operands = sizeof...(In);
    const std::int64_t whole = count / n * n, rest = count - whole;
    const T* from[operands] = {in...};
    T padded[operands + 1][static_cast<std::size_t>(n)] = {};
    T* to = out;
    std::int64_t end = whole;
    for (int pass = rest ? 2 : 1; pass > 0; --pass) {
      for (std::int64_t i = 0; i < end; i += n) [&]<std::size_t... I>(std::index_sequence<I...>) {
          simd::store(to + i, body(simd::load<T>(from[I] + i)...));
        }
      (std::make_index_sequence<operands>{});
      if (pass == 1) break;
      for (std::size_t k = 0; k < operands; ++k) {
        std::copy_n(from[k] + whole, rest, padded[k]);
        from[k] = padded[k];
      }
      to = padded[operands];
      end = n;
    }
    if (rest) std::copy_n(padded[operands], rest, out + whole);
  }
}

/// Operand type of map_block's body: a vector, or int64_t itself.
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
