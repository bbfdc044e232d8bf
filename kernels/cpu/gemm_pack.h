// Packing for the native GEMM: operands of any layout and floating type become panels in the compute type, in the order
// in which the micro-kernel reads them. Missing lines are filled with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace poolgrad::kernels {

/// Elements past the end of a packed panel that pack_panel may overwrite.
template <class T>
inline constexpr std::int64_t panel_slack = simd::lanes<T>;

namespace detail {
/// Stores are whole vectors: what spills over the end of a step is overwritten by the next step, so the last vector of
/// a step goes first.
template <class T, int Width>
inline constexpr int last_vector = (Width - 1) / simd::lanes<T>* simd::lanes<T>;

/// Whole: every one of the Width lines exists.
template <bool Whole, int Width, class T, class S>
void pack_by_step(T* out, const S* x, std::int64_t stride, std::int64_t count, std::int64_t depth) {
  constexpr int n = simd::lanes<T>, last = last_vector<T, Width>;
  for (std::int64_t p = 0; p < depth; ++p, x += stride, out += Width) {
#pragma GCC unroll 8
    for (int i = last; i >= 0; i -= n) {
      const bool inside = Whole && i + n <= Width;
      simd::store(out + i, inside ? simd::load<T>(x + i) : simd::load_partial<T>(x + i, count - i));
    }
  }
}

/// lanes<T> steps, or fewer where FullSteps is false.
template <bool Whole, bool FullSteps, int Width, class T, class S>
inline void pack_by_line(T* out, const S* x, std::int64_t stride, std::int64_t count, std::int64_t steps) {
  constexpr int n = simd::lanes<T>, last = last_vector<T, Width>;
#pragma GCC unroll 8
  for (int i = last; i >= 0; i -= n) {
    simd::Vec<T> rows[std::size_t{n}];
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) {
      const S* line = x + (i + r) * stride;
      if (i + r >= Width || !(Whole || i + r < count))
        rows[r] = simd::Vec<T>{};
      else
        rows[r] = FullSteps ? simd::load<T>(line) : simd::load_partial<T>(line, steps);
    }
    simd::transpose<T>(rows);
    if (FullSteps) {
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) simd::store(out + r * Width + i, rows[r]);
    } else {
      for (std::int64_t r = 0; r < steps; ++r) simd::store(out + r * Width + i, rows[r]);
    }
  }
}
}  // namespace detail

/// A panel of `Width` lines, step by step: out[p * Width + i] is line i at step p < depth, for i < count <= Width; 0
/// for the other i. Line i at step p is x[i * stride + p] where `by_line`, else x[p * stride + i].
template <int Width, class T, class S>
void pack_panel(T* out, const S* x, std::int64_t stride, bool by_line, std::int64_t count, std::int64_t depth) {
  const auto pack = [&](auto whole) {
    constexpr bool is_whole = decltype(whole)::value;
    if (by_line) {
      constexpr std::int64_t n = simd::lanes<T>;
      std::int64_t p = 0;
      for (; p + n <= depth; p += n)
        detail::pack_by_line<is_whole, true, Width>(out + p * Width, x + p, stride, count, n);
      if (p < depth) detail::pack_by_line<is_whole, false, Width>(out + p * Width, x + p, stride, count, depth - p);
    } else {
      detail::pack_by_step<is_whole, Width>(out, x, stride, count, depth);
    }
  };
  count == Width ? pack(std::true_type{}) : pack(std::false_type{});
}

}  // namespace poolgrad::kernels
