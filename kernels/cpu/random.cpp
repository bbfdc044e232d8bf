#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"

namespace poolgrad::kernels {
namespace {

/// Calls body(begin, count, words) for blocks of the elements [0, n): element i owns the `WordsPerElement` words that
/// begin at word (key.offset + i) * WordsPerElement of its stream. Ranges of elements that are disjoint would overlap
/// as ranges of words if kinds of numbers with different needs shared a stream, so each need has its own.
template <int WordsPerElement, class Body>
void for_each_random_block(const RandomKey& key, std::int64_t n, const Body& body) {
  const RandomKey stream{key.seed, key.use ^ (std::uint64_t{WordsPerElement} << 60), key.offset};
  parallel_ranges(n, 8 * block_size, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::uint32_t words[static_cast<std::size_t>(WordsPerElement * block_size + 8)];
    for (std::int64_t i = begin; i < end; i += block_size) {
      const std::int64_t count = std::min(block_size, end - i);
      const std::uint64_t first = (stream.offset + static_cast<std::uint64_t>(i)) * WordsPerElement;
      const std::int64_t skip = static_cast<std::int64_t>(first % 4);
      philox_blocks(stream, first / 4, (skip + count * WordsPerElement + 3) / 4, words);
      body(i, count, words + skip);
    }
  });
}

/// Numbers in [0, 1) from pairs of words.
void unit_numbers(const std::uint32_t* words, std::int64_t count, double* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = unit_interval(words[2 * i], words[2 * i + 1]);
}

template <class T>
void write(const Sink<T>& sink, std::int64_t begin, std::int64_t count, const double* values) {
  alignas(64) T buffer[block_size];
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = static_cast<T>(values[i]);
  sink.finish(begin, count, buffer);
}

}  // namespace

void on_cpu::uniform(Stream, const RandomKey& key, const View& out, double low, double high) {
  // Rounding to the dtype may reach `high`: half a spacing below, and a little more, it does not.
  const double spacing = out.dtype == DType::f64   ? 0x1p-52
                         : out.dtype == DType::f32 ? 0x1p-23
                         : out.dtype == DType::f16 ? 0x1p-10
                                                   : 0x1p-7;
  const double last = std::max(low, high - std::abs(high) * spacing * 0.51);
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Sink<T> sink(out);
    for_each_random_block<2>(key, out.count(), [&](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      double values[block_size];
      unit_numbers(words, count, values);
      for (std::int64_t i = 0; i < count; ++i) values[i] = std::min(low + (high - low) * values[i], last);
      write(sink, begin, count, values);
    });
  });
}

void on_cpu::normal(Stream, const RandomKey& key, const View& out, double mean, double deviation) {
  using V = simd::Vec<double>;
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Sink<T> sink(out);
    for_each_random_block<4>(key, out.count(), [&](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      double radius[block_size], angle[block_size];
      for (std::int64_t i = 0; i < count; ++i) {
        radius[i] = 1.0 - unit_interval(words[4 * i], words[4 * i + 1]);  // in (0, 1]
        angle[i] = 2 * std::numbers::pi * unit_interval(words[4 * i + 2], words[4 * i + 3]);
      }
      for_each_vector<double>(count, [&](std::int64_t i, std::int64_t left) {
        const V logarithm = Math<V>::log(simd::load_partial<double>(radius + i, left, 1.0));
        const V cosine = Math<V>::cos(simd::load_partial<double>(angle + i, left));
        simd::store_partial(radius + i, mean + deviation * (Math<V>::sqrt(-2.0 * logarithm) * cosine), left);
      });
      write(sink, begin, count, radius);
    });
  });
}

void on_cpu::dropout(Stream, const RandomKey& key, const View& out, const View& x, double p) {
  if (p >= 1) return fill({}, out, 0);
  const auto threshold = static_cast<std::uint32_t>(p * 0x1p32);
  with_compute_type(x.dtype, [&]<class T>(T) {
    const T scale = static_cast<T>(1 / (1 - p));
    const Source<T> source(x);
    const Sink<T> sink(out);
    for_each_random_block<1>(key, out.count(), [=](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      alignas(64) T buffer[block_size], result[block_size];
      const T* from = source.read(begin, count, buffer);
      T* to = sink.target(begin, result);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) {
        const T kept = from[i] * scale;
        to[i] = words[i] < threshold ? T{} : kept;
      }
      sink.finish(begin, count, to);
    });
  });
}

}  // namespace poolgrad::kernels
