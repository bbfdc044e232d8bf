// Maps random words to numbers, bitwise equal on host and device. Every product and sum with ambiguous rounding is an
// explicit fma, and no library computes logarithms or cosines. V is double or a vector of them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "kernels/dtype.h"
#include "kernels/functors/host_device.h"
#include "kernels/functors/math.h"
#include "kernels/functors/philox.h"
#include "kernels/functors/trigonometry.h"
#include "kernels/random.h"

namespace poolgrad::kernels {

/// Resolves the key of a recorded step, in kernels.
POOLGRAD_HD constexpr RandomKey key_of_replay(const RandomKey& key) {
  if (key.replayed == nullptr) return key;
  const RandomKey& now = key.replayed->key;
  return {now.seed, now.use, now.offset + key.offset};
}

/// Words of a kind of numbers: element i owns the `words_each` words from word (key.offset + i) * words_each of this
/// stream. Each `words_each` has its own stream: otherwise disjoint ranges of elements could overlap as ranges of
/// words.
POOLGRAD_HD constexpr RandomKey stream_of_words(const RandomKey& key, int words_each) {
  return {key.seed, key.use ^ (static_cast<std::uint64_t>(words_each) << 60), key.offset, key.replayed};
}

/// Uniform in [low, high), rounded to `dtype`, from a number in [0, 1).
struct UniformNumber {
  static constexpr int words = 2;
  double low, span, last;

  /// Rounding to the dtype could reach `high`. `last` limits the value to a little more than half a spacing below it.
  UniformNumber(double from, double high, DType dtype) : low(from), span(high - from) {
    const double spacing = dtype == DType::f64   ? 0x1p-52
                           : dtype == DType::f32 ? 0x1p-23
                           : dtype == DType::f16 ? 0x1p-10
                                                 : 0x1p-7;
    const double below = std::fma(-std::abs(high), spacing * 0.51, high);
    last = low < below ? below : low;
  }
  POOLGRAD_HD double operator()(double unit) const {
    const double value = std::fma(span, unit, low);
    return last < value ? last : value;
  }
};

/// Normal numbers from two numbers in [0, 1) (Box & Muller 1958): mean + deviation sqrt(-2 log(1 - u)) cos(2 pi v).
struct NormalNumber {
  static constexpr int words = 4;
  double mean, deviation;

  template <class V>
  POOLGRAD_HD V operator()(V u, V v) const {
    const V length = Math<V>::sqrt(-2.0 * logarithm(1.0 - u));
    return Math<V>::fma(V{} + deviation, length * cosine_of_turns(v), V{} + mean);
  }

 private:
  // x = 2^e m in (0, 1], m in [sqrt(1/2), sqrt(2)): log x = e ln 2 + 2 atanh((m - 1) / (m + 1)). The truncated terms of
  // the series are below half an ulp.
  template <class V>
  static POOLGRAD_HD V logarithm(V x) {
    using I = trigonometry::Integer<V>;
    constexpr std::int64_t one = 0x3ff0000000000000, root_of_half = 0x3fe6a09e667f3bcd;
    const I bits = std::bit_cast<I>(x);
    const I exponent = ((bits + (one - root_of_half)) >> 52) - 1023;
    const V m = std::bit_cast<V>(bits - (exponent << 52));
    const V e = std::bit_cast<V>(exponent + 0x4338000000000000) - 0x1.8p52;
    const V f = m - 1.0, s = f / (m + 1.0), square = s * s;
    V series = V{} + 1.0 / 23;
    for (int k = 10; k >= 1; --k) series = Math<V>::fma(series, square, V{} + 1.0 / (2 * k + 1));
    // 2 s = f - s f keeps the largest term exact.
    const V correction = s * Math<V>::fma(2.0 * square, series, -f);
    const V low = f + Math<V>::fma(e, V{} + 0x1.cf79abc9e3b39p-40, correction);
    return Math<V>::fma(e, V{} + 0x1.62e42fefap-1, low);
  }

  // cos(2 pi v) for v in [0, 1); subtracts quarter turns exactly.
  template <class V>
  static POOLGRAD_HD V cosine_of_turns(V v) {
    const V shifted = 4.0 * v + 0x1.8p52;  // the low bits hold the nearest integer
    const V angle = (4.0 * v - (shifted - 0x1.8p52)) * (std::numbers::pi / 2);
    return trigonometry::of_quarters(std::bit_cast<trigonometry::Integer<V>>(shifted), angle).cosine;
  }
};

/// Dropout: keeps a number with probability 1 - p, p < 1, and scales it.
template <class T>
struct DroppedNumber {
  static constexpr int words = 1;
  std::uint32_t threshold;
  T scale;

  explicit DroppedNumber(double p) : threshold(static_cast<std::uint32_t>(p * 0x1p32)), scale(T(1 / (1 - p))) {}
  POOLGRAD_HD T operator()(std::uint32_t word, T x) const {
    const T kept = x * scale;
    return word < threshold ? T{} : kept;
  }
};

}  // namespace poolgrad::kernels
