#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/simd/vector_math.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::Vec;

constexpr std::int64_t pairs_at_once = 64;

/// `magnitude` times cos and sin of position * frequency, for `count` frequencies rounded up to whole vectors.
template <class T>
void rotation(double position, const double* frequency, std::int64_t count, double magnitude, double sign, T* cosine,
              T* sine) {
  constexpr std::int64_t width = simd::lanes<double>;
  for (std::int64_t i = 0; i < count; i += width) {
    const auto [s, c] = simd::detail::sine_cosine(position * simd::load<double>(frequency + i));
    simd::detail::store_as(cosine + i, magnitude * c);
    simd::detail::store_as(sine + i, sign * magnitude * s);
  }
}

}  // namespace

void on_cpu::rope(Stream, const View& out, const View& x, const RotaryPositions& positions,
                  const RotaryFrequencies& frequencies, bool inverse) {
  if (x.count() == 0) return;
  with_floating_type(x.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    const std::int64_t half = x.shape[3] / 2,
                       steps_per_range = std::max<std::int64_t>(
                           1, 8192 / std::max<std::int64_t>(1, x.shape[0] * x.shape[2] * x.shape[3]));
    for (std::int64_t first = 0; first < half; first += pairs_at_once) {
      const std::int64_t pairs = std::min(pairs_at_once, half - first);
      double frequency[pairs_at_once] = {};
      for (std::int64_t d = 0; d < pairs; ++d)
        frequency[d] = frequencies.of(
            std::pow(frequencies.base, -static_cast<double>(first + d) / static_cast<double>(half)), first + d);
      parallel_ranges(x.shape[1], steps_per_range, [&](std::int64_t begin, std::int64_t end) {
        alignas(64) T cosine[pairs_at_once], sine[pairs_at_once];
        for (std::int64_t t = begin; t < end; ++t) {
          rotation(positions.of(t), frequency, pairs, frequencies.magnitude, inverse ? -1.0 : 1.0, cosine, sine);
          for (std::int64_t b = 0; b < x.shape[0]; ++b)
            for (std::int64_t h = 0; h < x.shape[2]; ++h) {
              const S* from = x.as<const S>() + b * x.strides[0] + t * x.strides[1] + h * x.strides[2] + first;
              S* to = out.as<S>() + b * out.strides[0] + t * out.strides[1] + h * out.strides[2] + first;
              for_each_vector<T>(pairs, [&](std::int64_t i, std::int64_t count) {
                const Vec<T> c = simd::load_partial<T>(cosine + i, count), s = simd::load_partial<T>(sine + i, count);
                const Vec<T> low = simd::load_partial<T>(from + i, count);
                const Vec<T> high = simd::load_partial<T>(from + half + i, count);
                simd::store_partial(to + i, low * c - high * s, count);
                simd::store_partial(to + half + i, high * c + low * s, count);
              });
            }
        }
      });
    }
  });
}

}  // namespace poolgrad::kernels
