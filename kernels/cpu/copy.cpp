#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/strided.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

constexpr std::int64_t range_size = 16 * block_size;

/// out = x, with x contiguous along dimension `d` and out along the last one. It transposes blocks that fit registers:
/// it reads along one dimension and writes along the other.
template <class Word>
void copy_turned(const View& out, const View& x, int d) {
  const int last = out.rank - 1;
  View outer_out = out, outer_x = x;  // without these two dimensions
  for (View* view : {&outer_out, &outer_x}) view->shape[d] = view->shape[last] = 1;
  constexpr std::int64_t block = sizeof(Word) == 8 ? simd::lanes<double> : simd::lanes<float>;
  const std::int64_t rows = out.shape[d], columns = out.shape[last];
  const std::int64_t out_stride = out.strides[d], x_stride = x.strides[last];
  const std::int64_t row_blocks = (rows + block - 1) / block;
  const std::int64_t per_range = std::max<std::int64_t>(1, range_size / (block * columns));
  parallel_ranges(outer_out.count() * row_blocks, per_range, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t outer = item / row_blocks, row = item % row_blocks * block;
      Word* to = out.as<Word>() + outer_out.offset(outer) + row * out_stride;
      const Word* from = x.as<const Word>() + outer_x.offset(outer) + row;
      const std::int64_t height = std::min(block, rows - row);
      for (std::int64_t column = 0; column < columns; column += block) {
        const std::int64_t width = std::min(block, columns - column);
        if constexpr (sizeof(Word) >= 4) {
          using T = std::conditional_t<sizeof(Word) == 8, double, float>;  // shuffles keep every bit
          simd::Vec<T> vectors[static_cast<std::size_t>(block)];
          if (height == block && width == block) {
            for (std::int64_t j = 0; j < block; ++j)
              std::memcpy(&vectors[j], from + (column + j) * x_stride, sizeof(vectors[j]));
            simd::transpose<T>(vectors);
            for (std::int64_t i = 0; i < block; ++i)
              std::memcpy(to + i * out_stride + column, &vectors[i], sizeof(vectors[i]));
            continue;
          }
        }
        for (std::int64_t i = 0; i < height; ++i)
          for (std::int64_t j = 0; j < width; ++j) to[i * out_stride + column + j] = from[i + (column + j) * x_stride];
      }
    }
  });
}

/// Returns the dimension along which x is contiguous, if a transposing copy pays off; else -1.
int turned_dimension(const View& out, const View& x) {
  constexpr std::int64_t worthwhile = 8;
  const int last = out.rank - 1;
  if (last < 1 || out.strides[last] != 1 || x.strides[last] == 1 || out.shape[last] < worthwhile) return -1;
  for (int d = 0; d < last; ++d)
    if (x.strides[d] == 1 && x.shape[d] >= worthwhile) return d;
  return -1;
}

/// out = x of one dtype: moves bytes, never converts values.
void copy_bytes(View out, View x) {
  std::array views{out, x};
  sort_dimensions(views);
  merge_dimensions(views);
  if (const int d = turned_dimension(views[0], views[1]); d >= 0)
    return with_word(out.dtype, [&]<class Word>(Word) { copy_turned<Word>(views[0], views[1], d); });
  const Strided to(views[0]), from(views[1]);
  parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
    if (void* place = to.direct(begin)) return from.read(begin, end - begin, place);
    if (const void* place = from.direct(begin)) return to.write(begin, end - begin, place);
    alignas(64) std::int64_t buffer[block_size];
    for (; begin < end; begin += block_size) {
      const std::int64_t count = std::min(block_size, end - begin);
      from.read(begin, count, buffer);
      to.write(begin, count, buffer);
    }
  });
}

template <class T>
void identity(const Block<T>& block) {
  std::copy_n(block.in[0], block.count, block.out[0]);
}

template <class T>
void set_all(const Block<T>& block) {
  std::fill_n(block.out[0], block.count, block.a);
}

}  // namespace

void on_cpu::copy(Stream, const View& out, const View& x) {
  if (out.count() == 0) return;
  if (out.dtype == x.dtype) return copy_bytes(out, x);
  with_compute_type(x.dtype, [&]<class T>(T) { for_each_block<T>(std::array{out}, std::array{x}, &identity<T>); });
}

void on_cpu::fill(Stream, const View& out, double value) {
  with_compute_type(out.dtype, [&]<class T>(T) { for_each_block<T>(std::array{out}, {}, &set_all<T>, value); });
}

void on_cpu::arange(Stream, const View& out, const ArithmeticSequence& numbers) {
  with_type_among<double, std::int64_t>(is_floating(out.dtype) ? DType::f64 : DType::i64, [&]<class T>(T) {
    const Sink<T> sink(out);
    parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) T buffer[block_size];
      for (; begin < end; begin += block_size) {
        const std::int64_t count = std::min(block_size, end - begin);
        for (std::int64_t i = 0; i < count; ++i) buffer[i] = numbers.at<T>(begin + i);
        sink.finish(begin, count, buffer);
      }
    });
  });
}

}  // namespace poolgrad::kernels
