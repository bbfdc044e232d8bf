// Reduces the elements of rows or columns to one result each, in an order that depends on the shape alone.
// kernels/cpu/reduction_plan.h classifies x and sets the number of parts of long reductions. The same kernels then
// reduce the parts.
//
// A Reduction defines the reduction: Part of(T x, index), identity(), combine(a, b), result(Part, divisor).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "kernels/cpu/reduction_plan.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/view.h"

namespace poolgrad::kernels::cuda {

/// A reduction of kernels/functors/reduction.h; a mean has a divisor. Reducing boolean results again does not change
/// them.
template <class Op, class T>
struct Reduced {
  using Part = T;
  static POOLGRAD_HD T identity() { return Op::template identity<T>; }
  static POOLGRAD_HD T of(T x, std::int64_t) { return Op::value(x); }
  static POOLGRAD_HD T combine(T a, T b) { return Op::combine(a, b); }
  static POOLGRAD_HD T result(T part, T divisor) { return part / divisor; }
};

/// Elements per access of a thread: at least 16 bytes for all dtypes except the smallest.
template <class T>
inline constexpr int wide = sizeof(T) == sizeof(double) && !std::is_integral_v<T> ? 4 : 8;

inline constexpr int reduce_threads = 256;

/// Adjacent dimensions of a view with a row-major index, in 32 bits if all offsets fit.
struct Axes {
  int rank = 0;
  bool narrow = true;
  std::int64_t shape[max_rank] = {}, strides[max_rank] = {};

  Axes() = default;
  Axes(const View& view, int first, int count) : rank(count) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    std::int64_t elements = 1, reach = 0;
    for (int d = 0; d < rank; ++d) {
      shape[d] = view.shape[first + d];
      strides[d] = view.strides[first + d];
      elements *= shape[d];
      reach += (shape[d] - 1) * std::abs(strides[d]);
    }
    narrow = elements <= most && reach <= most;
  }

  POOLGRAD_HD std::int64_t offset(std::int64_t i) const {
    return narrow ? walk<std::int32_t>(i) : walk<std::int64_t>(i);
  }

 private:
  template <class Index>
  POOLGRAD_HD std::int64_t walk(std::int64_t i) const {
    Index rest = static_cast<Index>(i), sum = 0;
    POOLGRAD_ROLLED
    for (int d = rank - 1; d > 0; --d) {
      const auto size = static_cast<Index>(shape[d]);
      const Index above = rest / size;
      sum += (rest - above * size) * static_cast<Index>(strides[d]);
      rest = above;
    }
    return rank ? static_cast<std::int64_t>(static_cast<Index>(sum + rest * static_cast<Index>(strides[0]))) : 0;
  }
};

/// x as [outer][reduced][inner], as the plan classifies it. `dense`: `wide` neighbors are aligned whole accesses.
struct ReduceInput {
  const std::byte* data;
  DType dtype;
  bool dense;
  Axes outer, reduced;
  std::int64_t rows, count, inner, inner_stride;
};

/// Plans rows of x along its last `reduced_rank` dimensions, in the given order.
inline ReductionPlan plan_rows(const View& out, const View& x, int reduced_rank) {
  ReductionPlan plan;
  plan.x = x;
  plan.out = out;
  plan.outer_rank = x.rank - reduced_rank;
  plan.reduced_rank = reduced_rank;
  for (int d = 0; d < x.rank; ++d) (d < plan.outer_rank ? plan.outer : plan.reduced) *= x.shape[d];
  return plan;
}

template <class T>
ReduceInput reduce_input(const ReductionPlan& plan) {
  const View& x = plan.x;
  const int last = x.rank - 1;
  ReduceInput in{x.as<const std::byte>(),
                 x.dtype,
                 true,
                 {x, 0, plan.outer_rank},
                 {x, plan.outer_rank, plan.reduced_rank},
                 plan.outer,
                 plan.reduced,
                 plan.inner,
                 plan.columns() ? x.strides[last] : 0};
  // An access runs along the last dimension; the strides of the others lead from one access to the next.
  const std::size_t size = size_of(x.dtype),
                    access = std::min<std::size_t>(16, size * static_cast<std::size_t>(wide<T>));
  in.dense = reinterpret_cast<std::uintptr_t>(x.data) % access == 0;
  for (int d = 0; d < last; ++d) in.dense &= static_cast<std::size_t>(std::abs(x.strides[d])) * size % access == 0;
  if (last >= 0 && (plan.columns() || plan.reduced_rank > 0)) in.dense &= x.strides[last] == 1;
  if (!plan.columns()) in.dense &= plan.reduced_rank <= 1;
  return in;
}

/// Destination of results. `adds`: adds to the current values, which must have the type of a result.
template <class T>
struct ReduceOutput {
  std::byte* data;
  DType dtype;
  Axes at;
  T divisor;
  bool adds;

  ReduceOutput(const View& out, T by, bool add = false)
      : data(out.as<std::byte>()), dtype(out.dtype), at(out, 0, out.rank), divisor(by), adds(add) {}
  /// Writes result `index`, in row-major order.
  template <class V>
  __device__ void put(std::int64_t index, V value) const {
    with_element<V, true>(dtype, [&]<class S>(S) {
      S* const to = reinterpret_cast<S*>(data) + at.offset(index);
      if constexpr (std::is_same_v<S, V>) {
        *to = adds ? *to + value : value;
      } else {
        *to = narrowed<S>(value);
      }
    });
  }
};

/// Reads wide<T> adjacent elements from an offset in whole accesses.
template <class T>
__device__ void read_dense(const ReduceInput& x, std::int64_t offset, T (&values)[wide<T>]) {
  with_element<T, false>(x.dtype, [&]<class S>(S) {
    const auto pack = load_whole<Pack<S, wide<T>>>(reinterpret_cast<const S*>(x.data) + offset);
    POOLGRAD_UNROLL
    for (int e = 0; e < wide<T>; ++e) values[e] = widened<T>(pack.value[e]);
  });
}
/// Reads elements with a stride; only the first `left` exist.
template <class T>
__device__ void read_wide(const ReduceInput& x, std::int64_t offset, std::int64_t stride, std::int64_t left,
                          T (&values)[wide<T>]) {
  if (x.dense && left >= wide<T>) return read_dense<T>(x, offset, values);
  with_element<T, false>(x.dtype, [&]<class S>(S) {
    POOLGRAD_UNROLL
    for (int e = 0; e < wide<T>; ++e)
      if (e < left) values[e] = widened<T>(reinterpret_cast<const S*>(x.data)[offset + e * stride]);
  });
}

/// Reduces each row, or each `segment` of one, with `lanes` neighboring lanes (Threads == 32) or a block. Writes result
/// (row, segment). Threads take `wide` elements in turn.
template <class Reduction, class T, int Threads>
__global__ __launch_bounds__(reduce_threads, sizeof(typename Reduction::Part) > 8 ? 3 : 4) void reduce_rows(
    const __grid_constant__ ReduceInput x, const __grid_constant__ ReduceOutput<T> out, const std::int64_t segment,
    const std::int64_t segments, const int lanes) {
  using Part = typename Reduction::Part;
  const bool alone = Threads > threads_per_warp;  // a block per item
  const int per_block = alone ? 1 : static_cast<int>(blockDim.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t items = x.rows * segments;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * per_block; first < items;
       first += static_cast<std::int64_t>(gridDim.x) * per_block) {
    const std::int64_t item = first + static_cast<int>(threadIdx.x) / lanes;
    Part part = Reduction::identity();
    if (item < items) {
      const std::int64_t row = segments == 1 ? item : item / segments, begin = (item - row * segments) * segment;
      const std::int64_t end = begin + segment < x.count ? begin + segment : x.count, base = x.outer.offset(row);
      POOLGRAD_ROLLED
      for (std::int64_t i = begin + lane * wide<T>; i < end; i += lanes * wide<T>) {
        if (x.dense && i + wide<T> <= end) {
          T values[wide<T>];
          read_dense<T>(x, base + i, values);
          POOLGRAD_UNROLL
          for (int e = 0; e < wide<T>; ++e) part = Reduction::combine(part, Reduction::of(values[e], i + e));
          continue;
        }
        const std::int64_t last = i + wide<T> < end ? i + wide<T> : end;
        POOLGRAD_ROLLED
        for (std::int64_t at = i; at < last; ++at) {
          const std::int64_t offset = base + x.reduced.offset(at);
          with_element<T, false>(x.dtype, [&]<class S>(S) {
            part = Reduction::combine(part, Reduction::of(widened<T>(reinterpret_cast<const S*>(x.data)[offset]), at));
          });
        }
      }
    }
    if constexpr (Threads > threads_per_warp)
      part = block_reduce<Reduction, Threads>(part);
    else
      part = warp_reduce<Reduction>(part, lanes);
    if (lane == 0 && item < items) out.put(item, Reduction::result(part, out.divisor));
  }
}

/// Reduces each chunk of rows of [outer][reduced][inner] to one row, result (outer, chunk, column). A block has
/// `across` threads side by side, a power of two, with `wide` columns each. The other threads take further rows. Shared
/// memory combines the threads of a column.
template <class Reduction, class T>
__global__ __launch_bounds__(reduce_threads, 4) void reduce_columns(const __grid_constant__ ReduceInput x,
                                                                    const __grid_constant__ ReduceOutput<T> out,
                                                                    const __grid_constant__ RowChunks chunks,
                                                                    const int across) {
  using Part = typename Reduction::Part;
  POOLGRAD_SHARED(Part, staged, reduce_threads * wide<T>);
  const int thread = static_cast<int>(threadIdx.x), side = thread % across, below = thread / across;
  const int down = reduce_threads / across;
  const std::int64_t width = static_cast<std::int64_t>(across) * wide<T>, blocks = (x.inner + width - 1) / width;
  const std::int64_t items = x.rows * chunks.count * blocks;
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const std::int64_t at = item / blocks, outer = at / chunks.count, chunk = at - outer * chunks.count;
    const std::int64_t column_of_block = (item - at * blocks) * width;
    const std::int64_t column = column_of_block + side * wide<T>;
    const int left = x.inner - column < wide<T> ? static_cast<int>(x.inner - column) : wide<T>;
    Part parts[wide<T>];
    POOLGRAD_UNROLL
    for (int e = 0; e < wide<T>; ++e) parts[e] = Reduction::identity();
    if (left > 0) {
      const std::int64_t base = x.outer.offset(outer) + column * x.inner_stride, end = chunks.end(chunk);
      POOLGRAD_ROLLED
      for (std::int64_t row = chunks.begin(chunk) + below; row < end; row += down) {
        const std::int64_t start = base + x.reduced.offset(row);
        T values[wide<T>] = {};
        read_wide<T>(x, start, x.inner_stride, left, values);
        POOLGRAD_UNROLL
        for (int e = 0; e < wide<T>; ++e)
          if (e < left) parts[e] = Reduction::combine(parts[e], Reduction::of(values[e], row));
      }
    }
    __syncthreads();  // all threads have combined the previous item
    POOLGRAD_UNROLL
    for (int e = 0; e < wide<T>; ++e) staged[e * reduce_threads + thread] = parts[e];
    for (int rows = down / 2; rows > 0; rows /= 2) {
      __syncthreads();
      if (below < rows) {
        POOLGRAD_UNROLL
        for (int e = 0; e < wide<T>; ++e) {
          parts[e] =
              Reduction::combine(parts[e], static_cast<Part>(staged[e * reduce_threads + thread + rows * across]));
          staged[e * reduce_threads + thread] = parts[e];
        }
      }
    }
    __syncthreads();
    POOLGRAD_ROLLED
    for (int c = thread; c < width && column_of_block + c < x.inner; c += reduce_threads)
      out.put(at * x.inner + column_of_block + c,
              Reduction::result(static_cast<Part>(staged[c % wide<T> * reduce_threads + c / wide<T>]), out.divisor));
  }
}

/// Returns as many blocks as the work needs, within the grid limit; blocks loop over the rest.
inline LaunchShape reduce_shape(std::int64_t items, std::int64_t per_block) {
  constexpr std::int64_t most = 1 << 16;
  return {{std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, most)}, {reduce_threads}};
}

/// Returns the least power of two >= n, at most `most`, itself a power of two.
constexpr int power_of_two(std::int64_t n, int most) {
  int power = 1;
  while (power < n && power < most) power *= 2;
  return power;
}

/// Queues the reduction of the rows of x, with a result per segment.
template <class Reduction, class T>
void launch_rows(const char* op, Stream stream, const ReduceInput& x, const ReduceOutput<T>& out,
                 std::int64_t segments) {
  constexpr std::int64_t longest = 64 * threads_per_warp;  // longest row for a warp
  const std::int64_t segment = segments == 1 ? x.count : segment_size, items = x.rows * segments;
  if (std::min(x.count, segment) > longest)
    return launch(op, &reduce_rows<Reduction, T, reduce_threads>, reduce_shape(items, 1), stream, x, out, segment,
                  segments, reduce_threads);
  const int lanes = power_of_two((x.count + wide<T> - 1) / wide<T>, threads_per_warp);
  launch(op, &reduce_rows<Reduction, T, threads_per_warp>, reduce_shape(items, reduce_threads / lanes), stream, x, out,
         segment, segments, lanes);
}

template <class Reduction, class T>
void launch_columns(const char* op, Stream stream, const ReduceInput& x, const ReduceOutput<T>& out,
                    const RowChunks& chunks) {
  int across = power_of_two((x.inner + wide<T> - 1) / wide<T>, threads_per_warp);
  // A single chunk means few rows: more threads share them, so that each has at least one.
  if (chunks.count == 1)
    while (across > 4 && 2 * reduce_threads / across < chunks.size) across /= 2;
  const std::int64_t width = static_cast<std::int64_t>(across) * wide<T>;
  launch(op, &reduce_columns<Reduction, T>, reduce_shape(x.rows * chunks.count * ((x.inner + width - 1) / width), 1),
         stream, x, out, chunks, across);
}

/// Partial results, [outer][parts][inner], as an input for the next reduction. Parts are `apart` elements apart.
template <class T>
ReduceInput partial_input(const T* partial, std::int64_t outer, std::int64_t parts, std::int64_t inner,
                          std::int64_t apart) {
  View view{const_cast<T*>(partial), dtype_of<T>, 3, {outer, parts, inner}, {parts * apart, apart, 1}};
  if (inner == 1) view.rank = 2;
  ReductionPlan plan;
  plan.x = view;
  plan.outer_rank = plan.reduced_rank = 1;
  plan.outer = outer;
  plan.reduced = parts;
  plan.inner = inner;
  return reduce_input<T>(plan);
}
/// Returns a view of `count` partial results for output.
template <class T>
View partial_output(T* partial, std::int64_t count) {
  return {partial, dtype_of<T>, 1, {count}, {1}};
}

}  // namespace poolgrad::kernels::cuda
