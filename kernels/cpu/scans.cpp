#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"

namespace poolgrad::kernels {
namespace {

/// Largest: x replaces `best` where it is larger, or the first NaN.
template <bool Largest, class T>
bool better(T x, T best) {
  return (Largest ? x > best : x < best) || (x != x && best == best);
}

/// First index of the best of `count` elements, beginning with x[0]; the extreme value is found by vectors first.
template <bool Largest, class T>
std::int64_t best_of(const T* x, std::int64_t count) {
  T best = x[0];
#pragma GCC ivdep
  for (std::int64_t i = 1; i < count; ++i) best = (Largest ? x[i] > best : x[i] < best) ? x[i] : best;
  // A NaN wins over everything and is found by the same search.
  std::int64_t i = 0;
  while (i < count && x[i] == x[i] && x[i] != best) ++i;
  if (i < count && x[i] == x[i])
    for (std::int64_t j = i + 1; j < count; ++j)
      if (x[j] != x[j]) return j;
  return std::min(i, count - 1);
}

template <bool Largest>
void arg_best(const View& out, const View& x) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    const Rows shape(x);
    const Source<T> source(x);
    const Sink<std::int64_t> sink(out);
    parallel_rows(shape, [&](std::int64_t row) {
      alignas(64) T buffer[block_size];
      std::int64_t index = 0;
      T best{};
      for (std::int64_t i = 0; i < shape.columns; i += block_size) {
        const std::int64_t count = std::min(block_size, shape.columns - i);
        const T* block = source.read(row * shape.columns + i, count, buffer);
        const std::int64_t local = best_of<Largest>(block, count);
        if (i == 0 || better<Largest>(block[local], best)) {
          best = block[local];
          index = i + local;
        }
      }
      sink.finish(row, 1, &index);
    });
  });
}

}  // namespace

void on_cpu::argmax(Stream, const View& out, const View& x) { arg_best<true>(out, x); }
void on_cpu::argmin(Stream, const View& out, const View& x) { arg_best<false>(out, x); }

void on_cpu::cumulative_sum(Stream, const View& out, const View& x, bool reverse) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    using Sum = std::conditional_t<std::is_integral_v<T>, T, double>;
    const Rows shape(x);
    const Source<T> source(x);
    const Sink<T> sink(out);
    const std::int64_t n = shape.columns, blocks = (n + block_size - 1) / block_size;
    parallel_rows(shape, [&](std::int64_t row) {
      alignas(64) T buffer[block_size], result[block_size];
      Sum sum{};
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t begin = (reverse ? blocks - 1 - b : b) * block_size, count = std::min(block_size, n - begin);
        const T* block = source.read(row * n + begin, count, buffer);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = reverse ? count - 1 - i : i;
          sum += static_cast<Sum>(block[at]);
          result[at] = static_cast<T>(sum);
        }
        sink.finish(row * n + begin, count, result);
      }
    });
  });
}

namespace {

/// The first `count` elements as f64; the other lanes are 0.
template <class T>
simd::Vec<double> load_doubles(const T* from, std::int64_t count) {
  if constexpr (std::is_same_v<T, double>) {
    return simd::load_partial<double>(from, count);
  } else {
    typedef float Floats __attribute__((vector_size(simd::vector_bytes / 2)));
    Floats narrow{};
    if (count == simd::lanes<double>)
      std::memcpy(&narrow, from, sizeof(narrow));
    else
      std::memcpy(&narrow, from, static_cast<std::size_t>(count) * sizeof(float));
    return __builtin_convertvector(narrow, simd::Vec<double>);
  }
}

constexpr std::int64_t segment_size = 32 * block_size;

std::int64_t segments_of_squares(std::int64_t n) { return (n + segment_size - 1) / segment_size; }

}  // namespace

std::int64_t on_cpu::sum_of_squares_scratch(const View& x) {
  return segments_of_squares(x.count()) * static_cast<std::int64_t>(sizeof(double));
}

void on_cpu::add_sum_of_squares(Stream stream, const View& sum, const View& x) {
  const std::int64_t n = x.count(), segments = segments_of_squares(n);
  const Workspace<double> partial(stream, "add_sum_of_squares", segments);
  if (n == 0) return;
  with_floating_compute_type(x.dtype, [&]<class T>(T) {
    View sorted = x;
    sort_dimensions({&sorted, 1});
    const Source<T> source(sorted);
    parallel_ranges(n, segment_size, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T buffer[block_size];
      double total = 0;
      for (std::int64_t i = begin; i < end; i += block_size) {
        const T* block = source.read(i, std::min(block_size, end - i), buffer);
        total += sum_row<double>(std::min(block_size, end - i), [&](std::int64_t j, std::int64_t count) {
          const simd::Vec<double> value = load_doubles<T>(block + j, count);
          return value * value;
        });
      }
      partial.data()[begin / segment_size] = total;
    });
  });
  for (std::int64_t i = 0; i < segments; ++i) *sum.as<double>() += partial.data()[i];
}

}  // namespace poolgrad::kernels
