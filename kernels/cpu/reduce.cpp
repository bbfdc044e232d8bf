#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/reduction_plan.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/simd/vector_math.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/functors/reduction.h"

namespace poolgrad::kernels {

namespace {

/// Folds `count` contiguous elements to one.
template <class Op, class T>
T fold_block(const T* x, std::int64_t count) {
  const auto combine = [](auto a, auto b) { return Op::combine(a, b); };
  constexpr T identity = Op::template identity<T>;
  if constexpr (std::is_integral_v<T>) {
    T result = identity;
    for (std::int64_t i = 0; i < count; ++i) result = combine(result, Op::value(x[i]));
    return result;
  } else {
    const simd::Vec<T> lanes = fold_vectors<T>(count, identity, combine, [&](std::int64_t i, std::int64_t left) {
      simd::Vec<T> value = Op::value(simd::load_partial<T>(x + i, left));
      for (std::int64_t lane = left; lane < simd::lanes<T>; ++lane) value[lane] = identity;
      return value;
    });
    return simd::fold<T>(lanes, combine);
  }
}

template <class Op, class T>
void reduce_short_rows(const ReductionPlan& plan, T divisor) {
  const Source<T> source(plan.x);
  const Sink<T> sink(plan.out);
  const std::int64_t n = plan.reduced, rows_at_once = block_size / n;
  parallel_ranges(plan.outer, 16 * rows_at_once, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T buffer[block_size], results[block_size];
    for (; begin < end; begin += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, end - begin);
      const T* x = source.read(begin * n, rows * n, buffer);
      for (std::int64_t row = 0; row < rows; ++row, x += n) {
        T result = Op::template identity<T>;
        if (n < 16)
          for (std::int64_t i = 0; i < n; ++i) result = Op::combine(result, Op::value(x[i]));
        else
          result = fold_block<Op>(x, n);
        results[row] = result / divisor;
      }
      sink.finish(begin, rows, results);
    }
  });
}

template <class Op, class T>
void reduce_rows(const ReductionPlan& plan, T divisor, T* partial) {
  const Source<T> source(plan.x);
  const Sink<T> sink(plan.out);
  const std::int64_t segments = plan.segments();
  const std::int64_t per_range = std::max<std::int64_t>(1, segment_size / 2 / std::max<std::int64_t>(1, plan.reduced));
  parallel_ranges(plan.outer * segments, per_range, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T buffer[block_size];
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t start = item / segments * plan.reduced, segment = item % segments * segment_size;
      const std::int64_t stop = std::min(plan.reduced, segment + segment_size);
      T result = Op::template identity<T>;
      for (std::int64_t i = segment; i < stop; i += block_size) {
        const std::int64_t count = std::min(block_size, stop - i);
        result = Op::combine(result, fold_block<Op>(source.read(start + i, count, buffer), count));
      }
      partial[item] = result;
    }
  });
  parallel_ranges(plan.outer, block_size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* of_row = partial + row * segments;
      for (std::int64_t step = 1; step < segments; step *= 2)
        for (std::int64_t s = 0; s + step < segments; s += 2 * step)
          of_row[s] = Op::combine(of_row[s], of_row[s + step]);
    }
    alignas(64) T results[block_size];
    for (std::int64_t row = begin; row < end; ++row) results[row - begin] = partial[row * segments] / divisor;
    sink.finish(begin, end - begin, results);
  });
}

template <class Op, class T>
void reduce_columns(const ReductionPlan& plan, T divisor, T* partial) {
  using Lanes = LaneType<T>;
  using V = typename Lanes::type;
  const Source<T> source(plan.x);
  const Sink<T> sink(plan.out);
  const RowChunks chunks(plan.reduced);
  const std::int64_t column_blocks = (plan.inner + block_size - 1) / block_size;
  const auto combine = [](auto a, auto b) { return Op::combine(a, b); };
  parallel_ranges(plan.outer * chunks.count * column_blocks, 1, [&](std::int64_t item, std::int64_t) {
    alignas(64) T buffer[block_size];
    const std::int64_t column = item % column_blocks * block_size, count = std::min(block_size, plan.inner - column);
    const std::int64_t chunk = item / column_blocks % chunks.count, outer = item / column_blocks / chunks.count;
    T* sum = partial + (outer * chunks.count + chunk) * plan.inner + column;
    std::fill_n(sum, count, Op::template identity<T>);
    for (std::int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
      const T* x = source.read((outer * plan.reduced + row) * plan.inner + column, count, buffer);
      map_block<T>(
          count, sum, [&](V a, V b) { return combine(a, Op::value(b)); }, sum, x);
    }
  });
  for (std::int64_t outer = 0; outer < plan.outer; ++outer)
    combine_partial_rows(partial + outer * chunks.count * plan.inner, chunks.count, plan.inner, combine);
  parallel_ranges(plan.outer * plan.inner, block_size, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T results[block_size];
    for (std::int64_t i = begin; i < end; ++i)
      results[i - begin] = partial[i / plan.inner * chunks.count * plan.inner + i % plan.inner] / divisor;
    sink.finish(begin, end - begin, results);
  });
}

}  // namespace

std::int64_t on_cpu::reduce_scratch(const View& out, const View& x) {
  return with_compute_type(x.dtype, [&]<class T>(T) {
    return plan_reduction(out, x).workspace_size() * static_cast<std::int64_t>(sizeof(T));
  });
}

void on_cpu::reduce(Stream stream, ReduceOp op, const View& out, const View& x) {
  const ReductionPlan plan = plan_reduction(out, x);
  with_compute_type(x.dtype, [&]<class T>(T) {
    const Workspace<T> workspace(stream, "reduce", plan.workspace_size());
    const auto run = [&]<class Op>(Op, T divisor) {
      if (plan.columns())
        reduce_columns<Op>(plan, divisor, workspace.data());
      else if (plan.has_short_rows())
        reduce_short_rows<Op>(plan, divisor);
      else
        reduce_rows<Op>(plan, divisor, workspace.data());
    };
    // The mean of no elements is NaN for floating types.
    const T size = static_cast<T>(std::is_integral_v<T> && plan.reduced == 0 ? 1 : plan.reduced);
    with_functor(op, [&]<class Op>(Op) { run(Op{}, op == ReduceOp::mean ? size : T(1)); });
  });
}

// Argmax and argmin, running sums, sums of squares.

namespace {

/// Whether x replaces `best`: it is larger (Largest) or smaller, or the first NaN.
template <bool Largest, class T>
bool better(T x, T best) {
  return (Largest ? x > best : x < best) || (x != x && best == best);
}

/// First index of the best of `count` elements, starting with x[0]. Vectors find the extreme value first.
template <bool Largest, class T>
std::int64_t best_of(const T* x, std::int64_t count) {
  T best = x[0];
#pragma GCC ivdep
  for (std::int64_t i = 1; i < count; ++i) best = (Largest ? x[i] > best : x[i] < best) ? x[i] : best;
  // The same search finds a NaN, which wins over every number.
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
    using Sum = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;  // integers wrap around
    const Rows shape(x);
    const Source<T> source(x);
    using Stored = std::conditional_t<std::is_integral_v<T>, T, double>;  // rounded once, when written to `out`
    const Sink<Stored> sink(out);
    const std::int64_t n = shape.columns, blocks = (n + block_size - 1) / block_size;
    parallel_rows(shape, [&](std::int64_t row) {
      alignas(64) T buffer[block_size];
      alignas(64) Stored result[block_size];
      Sum sum{};
      for (std::int64_t b = 0; b < blocks; ++b) {
        const std::int64_t begin = (reverse ? blocks - 1 - b : b) * block_size, count = std::min(block_size, n - begin);
        const T* block = source.read(row * n + begin, count, buffer);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = reverse ? count - 1 - i : i;
          sum += static_cast<Sum>(block[at]);
          result[at] = static_cast<Stored>(sum);
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

}  // namespace

std::int64_t on_cpu::sums_of_squares_scratch(std::span<const View> all) {
  return segments_of_all(all) * static_cast<std::int64_t>(sizeof(double));
}

void on_cpu::add_sums_of_squares(Stream stream, const View& sum, std::span<const View> all) {
  const std::int64_t segments = segments_of_all(all);
  const Workspace<double> partial(stream, "add_sums_of_squares", segments);
  double* of_segment = partial.data();
  for (const View& x : all) {
    const std::int64_t n = x.count();
    if (n == 0) continue;
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
        of_segment[begin / segment_size] = total;
      });
    });
    of_segment += segments_of(n);
  }
  for (std::int64_t i = 0; i < segments; ++i) *sum.as<double>() += partial.data()[i];
}

}  // namespace poolgrad::kernels
