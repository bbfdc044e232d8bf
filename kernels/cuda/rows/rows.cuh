// Rows on a GPU, the counterpart of kernels/cpu/simd/row.h. A warp or a block takes a row. Thread t takes packs t, t +
// Threads, ... of 16 bytes. It keeps the first ones in registers and rereads the others, which hit the caches. A kernel
// that reduces and rewrites a row thus passes over memory once. Summation order depends on the shape alone, not on
// alignment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "kernels/cpu/reduction_plan.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/functors/math.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels::cuda {

/// The compute type of stored S.
template <class S>
using Compute = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// Elements per 16 bytes.
template <class S>
inline constexpr int width = static_cast<int>(16 / sizeof(S));

inline constexpr int threads_of_long_rows = 512, threads_of_short_rows = threads_per_warp, threads_of_other_rows = 256;

/// Contiguous rows. `packed`: packs are aligned to 16 bytes, with no remainder.
struct RowShape {
  std::int64_t rows, columns;
  bool packed;
};

/// Returns the number of elements of the row in the pack at `column`.
template <class S>
__device__ int elements_of_pack(std::int64_t column, const RowShape& shape) {
  const std::int64_t left = shape.columns - column;
  return left < width<S> ? static_cast<int>(left) : width<S>;
}

/// Loads the pack of a row at `column`; elements past the end are `rest`.
template <class S>
__device__ void load_pack(const S* row, std::int64_t column, const RowShape& shape, Compute<S> rest,
                          Compute<S> (&values)[width<S>]) {
  if (shape.packed && column < shape.columns) {
    const auto pack = load_whole<Pack<S, width<S>>>(row + column);
    POOLGRAD_UNROLL
    for (int e = 0; e < width<S>; ++e) values[e] = widened<Compute<S>>(pack.value[e]);
  } else {
    const int count = elements_of_pack<S>(column, shape);
    POOLGRAD_UNROLL
    for (int e = 0; e < width<S>; ++e) values[e] = e < count ? widened<Compute<S>>(row[column + e]) : rest;
  }
}
template <class S>
__device__ void store_pack(S* row, std::int64_t column, const RowShape& shape, const Compute<S> (&values)[width<S>]) {
  if (shape.packed) {
    Pack<S, width<S>> pack;
    POOLGRAD_UNROLL
    for (int e = 0; e < width<S>; ++e) pack.value[e] = narrowed<S>(values[e]);
    store_whole(row + column, pack);
  } else {
    const int count = elements_of_pack<S>(column, shape);
    POOLGRAD_UNROLL
    for (int e = 0; e < width<S>; ++e)
      if (e < count) row[column + e] = narrowed<S>(values[e]);
  }
}

/// A thread's share of a row of `Operands` operands, with `Threads` threads per row. Packs use `Registers` registers in
/// total.
template <class S, int Threads, std::size_t Operands = 1, std::size_t Registers = 16>
class RowPart {
 public:
  using T = Compute<S>;
  using Packs = T[Operands][width<S>];
  static constexpr std::size_t held = Registers * 4 / sizeof(T) / width<S> / Operands;
  static constexpr std::int64_t step = Threads * width<S>, capacity = step * static_cast<std::int64_t>(held);

  __device__ RowPart(const RowShape& shape, const S* a, const S* b = nullptr) : shape_(shape), from_{} {
    from_[0] = a;
    if constexpr (Operands > 1) from_[1] = b;
    POOLGRAD_UNROLL
    for (std::size_t p = 0; p < held; ++p) load(column(p), packs_[p]);
  }

  __device__ static bool first_thread() { return threadIdx.x % Threads == 0; }
  __device__ static std::int64_t column(std::size_t pack) {
    return static_cast<std::int64_t>(threadIdx.x % Threads) * width<S> + static_cast<std::int64_t>(pack) * step;
  }

  /// Calls body(column, pack, values) for the packs of this thread: values[k][e] is element column + e of operand k.
  /// `pack` is below `held`, or -1 for packs outside the registers.
  template <class Body>
  __device__ void for_each_pack(const Body& body) const {
    POOLGRAD_UNROLL
    for (std::size_t p = 0; p < held; ++p)
      if (column(p) < shape_.columns) body(column(p), static_cast<int>(p), packs_[p]);
    if constexpr (Threads == threads_of_long_rows) {
      for (std::int64_t c = column(held); c < shape_.columns; c += step) {
        Packs again;
        load(c, again);
        body(c, -1, again);
      }
    }
  }
  /// Returns the reduction of value(x), or value(a, b), over the row in every thread.
  template <class Reduction, class Value>
  __device__ T reduce(const Value& value) const {
    T result = Reduction::template identity<T>;
    for_each_pack([&](std::int64_t c, int, const Packs& in) {
      const int count = elements_of_pack<S>(c, shape_);
      POOLGRAD_UNROLL
      for (int e = 0; e < width<S>; ++e)
        if (e < count) result = Reduction::combine(result, call(value, in, e));
    });
    return block_reduce<Reduction, Threads>(result);
  }
  /// Writes value(x), or value(a, b), for the row to `to`.
  template <class Value>
  __device__ void write(S* to, const Value& value) const {
    for_each_pack([&](std::int64_t c, int, const Packs& in) {
      T out[width<S>];
      POOLGRAD_UNROLL
      for (int e = 0; e < width<S>; ++e) out[e] = call(value, in, e);
      store_pack(to, c, shape_, out);
    });
  }

 private:
  __device__ void load(std::int64_t c, Packs& packs) const {
    POOLGRAD_UNROLL
    for (std::size_t k = 0; k < Operands; ++k) load_pack(from_[k], c, shape_, T{}, packs[k]);
  }
  template <class Value>
  __device__ static T call(const Value& value, const Packs& in, int e) {
    if constexpr (Operands > 1)
      return value(in[0][e], in[1][e]);
    else
      return value(in[0][e]);
  }

  const RowShape& shape_;
  const S* from_[Operands];
  Packs packs_[held];
};

/// log(sum(exp(x))) as shift + log(sum). `shift` is the maximum, or 0 if that is -infinity. A row of -infinity then has
/// sum 0 and no NaN. With `infinite`, `shift` is also 0 for infinity, and the sum is infinity.
template <class T>
struct ExpSum {
  T shift, sum;
};
template <class Part, class T = typename Part::T>
__device__ ExpSum<T> exp_sum(const Part& row, bool infinite = false) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const T largest = row.template reduce<reductions::Maximum>([](T x) { return x; });
  const T shift = largest == -infinity || (infinite && largest == infinity) ? T{} : largest;
  return {shift, row.template reduce<reductions::Sum>([&](T x) { return Math<T>::exp(x - shift); })};
}

/// Threads of a block with `Threads` threads per row.
template <int Threads>
inline constexpr int block_of_rows = Threads > threads_of_other_rows ? Threads : threads_of_other_rows;

// Before Hopper ptxas spills a register of map_rows() for bf16 unless it knows that four blocks suffice.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define POOLGRAD_BOUNDS_OF_ROWS(threads) \
  __launch_bounds__(block_of_rows<threads>, (threads) > threads_of_other_rows ? 1 : 4)
#else
#define POOLGRAD_BOUNDS_OF_ROWS(threads) __launch_bounds__(block_of_rows<threads>)
#endif

/// Calls body.row<Threads>(shape, row) for every row.
template <class Body, int Threads>
__global__ POOLGRAD_BOUNDS_OF_ROWS(Threads) void map_rows(const __grid_constant__ RowShape shape,
                                                          const __grid_constant__ Body body) {
  const std::int64_t at_once = blockDim.x / Threads, step = gridDim.x * at_once;
  POOLGRAD_ROLLED
  for (std::int64_t row = blockIdx.x * at_once + threadIdx.x / Threads; row < shape.rows; row += step)
    body.template row<Threads>(shape, row);
}
#undef POOLGRAD_BOUNDS_OF_ROWS

/// Calls f(std::integral_constant) with the threads per row, if a thread holds `each` elements.
template <class F>
void with_row_threads(std::int64_t columns, std::int64_t each, const F& f) {
  if (columns <= each * threads_of_short_rows) return f(std::integral_constant<int, threads_of_short_rows>{});
  if (columns <= each * threads_of_other_rows) return f(std::integral_constant<int, threads_of_other_rows>{});
  f(std::integral_constant<int, threads_of_long_rows>{});
}
/// Returns the launch shape for `rows` rows of `threads` threads each; blocks loop over the remaining rows.
inline LaunchShape shape_of_rows(std::int64_t rows, int threads) {
  constexpr std::int64_t most = 1 << 16;
  const std::int64_t block = std::max(threads, threads_of_other_rows), at_once = block / threads;
  return {{std::clamp<std::int64_t>((rows + at_once - 1) / at_once, 1, most)}, {block}};
}

/// Returns whether rows at these addresses can be read in packs of S; ignores nullptr.
template <class S>
bool can_pack(std::int64_t columns, std::initializer_list<const void*> operands) {
  bool packed = columns % width<S> == 0;
  for (const void* data : operands) packed &= reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  return packed;
}

/// Throws DeviceError, `[op] ...`, for an operand outside device memory; ignores nullptr.
inline void check_operands(const char* op, Stream stream, std::initializer_list<const void*> operands) {
  for (const void* data : operands)
    if (data) check_operand(op, stream, data);
}

/// Queues body.row() for all rows of x; a thread holds `Body::each` elements. `operands` are rows or have the length of
/// one; `of_rows` have one element per row. Launches nothing for zero rows.
template <class S, class Body>
void for_each_row(const char* op, Stream stream, const View& x, std::initializer_list<const void*> operands,
                  std::initializer_list<const void*> of_rows, const Body& body) {
  const Rows rows(x);
  if (rows.rows == 0) return;
  check_operands(op, stream, of_rows);
  if (rows.columns > 0) check_operands(op, stream, operands);
  const RowShape shape{rows.rows, rows.columns, can_pack<S>(rows.columns, operands)};
  with_row_threads(rows.columns, Body::each, [&]<int Threads>(std::integral_constant<int, Threads>) {
    launch(op, &map_rows<Body, Threads>, shape_of_rows(rows.rows, Threads), stream, shape, body);
  });
}

}  // namespace poolgrad::kernels::cuda
