#include "kernels/functors/random.h"

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"

namespace poolgrad::kernels {
namespace {

/// Calls body(begin, count, words) for blocks of the elements [0, n), with the words that stream_of_words() assigns to
/// them.
template <int WordsPerElement, class Body>
void for_each_random_block(const RandomKey& key, std::int64_t n, const Body& body) {
  const RandomKey stream = stream_of_words(key, WordsPerElement);
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
  const UniformNumber number(low, high, out.dtype);
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Sink<T> sink(out);
    for_each_random_block<2>(key, out.count(), [&](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      double values[block_size];
      unit_numbers(words, count, values);
      for (std::int64_t i = 0; i < count; ++i) values[i] = number(values[i]);
      write(sink, begin, count, values);
    });
  });
}

void on_cpu::normal(Stream, const RandomKey& key, const View& out, double mean, double deviation) {
  const NormalNumber number{mean, deviation};
  with_compute_type(out.dtype, [&]<class T>(T) {
    const Sink<T> sink(out);
    for_each_random_block<4>(key, out.count(), [&](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      double u[block_size], v[block_size];
      for (std::int64_t i = 0; i < count; ++i) {
        u[i] = unit_interval(words[4 * i], words[4 * i + 1]);
        v[i] = unit_interval(words[4 * i + 2], words[4 * i + 3]);
      }
      for_each_vector<double>(count, [&](std::int64_t i, std::int64_t left) {
        simd::store_partial(
            u + i, number(simd::load_partial<double>(u + i, left), simd::load_partial<double>(v + i, left)), left);
      });
      write(sink, begin, count, u);
    });
  });
}

void on_cpu::dropout(Stream, const RandomKey& key, const View& out, const View& x, double p) {
  if (p >= 1) return fill({}, out, 0);
  with_compute_type(x.dtype, [&]<class T>(T) {
    const DroppedNumber<T> number(p);
    const Source<T> source(x);
    const Sink<T> sink(out);
    for_each_random_block<1>(key, out.count(), [=](std::int64_t begin, std::int64_t count, const std::uint32_t* words) {
      alignas(64) T buffer[block_size], result[block_size];
      const T* from = source.read(begin, count, buffer);
      T* to = sink.target(begin, result);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < count; ++i) to[i] = number(words[i], from[i]);
      sink.finish(begin, count, to);
    });
  });
}

}  // namespace poolgrad::kernels
