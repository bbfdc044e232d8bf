// Shared parts of the portable attention kernels: a block takes a tile of rows and computes its two products with the
// rows it visits. Operands are f64, f32, f16 or bf16; arithmetic is in T, f64 or f32.
//
//   scores    tile x visited, each element the product of two rows; thread (y, x) has rows 4 y .. 4 y + 3 and the
//             columns x, x + side, x + 2 side, x + 3 side
//   results   tile x columns, += weights * visited rows; the thread has packs x, x + side, ... of the same rows
//
// Between the two products, `lanes_of_row` neighboring threads own a row of scores in shared memory.
//
// A tile of at most four rows (`Few`) would leave most threads idle, so every thread has all rows.
// Scores: `lanes_of_row` neighbors share a visited row and split its columns. Results: thread (y, x) takes every
// side-th visited row from y on, and the threads of a result column add their sums at the end.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::cuda {

/// A block has side x side threads; a tile has four times as many rows and columns.
template <class T>
inline constexpr int side = sizeof(T) == 4 ? 16 : 8;
template <class T>
inline constexpr int tile_threads = side<T>* side<T>;
inline constexpr int rows_of_thread = 4;
template <class T>
inline constexpr int tile_rows = rows_of_thread* side<T>;
template <class T>
inline constexpr int lanes_of_row = tile_threads<T> / tile_rows<T>;
/// Rows of a small tile, and lanes per row of its scores.
inline constexpr int few_rows = rows_of_thread, lanes_of_few = 16;

/// Rows are staged in packs of 16 bytes, eight packs of a row at a time. The odd stride avoids bank conflicts.
inline constexpr int staged_packs = 8, staged_stride = staged_packs + 1;
template <class T>
inline constexpr int staged_count = 2 * tile_rows<T>* staged_stride;
template <class T>
using ValuePack = Pack<T, static_cast<std::size_t>(pack<T>)>;
/// Elements from one row of a score tile to the next.
template <class T>
inline constexpr int score_stride = tile_rows<T> + lanes_of_row<T>;
template <class T>
inline constexpr std::int64_t score_bytes = std::int64_t{tile_rows<T>} * score_stride<T>* std::int64_t{sizeof(T)};

/// The weight (-0) of a pair that does not count. No other weight is -0. Such a pair is skipped, so an infinity in it
/// has no effect.
template <class T>
inline constexpr T uncounted = -T{};
template <class T>
__device__ bool counts(T weight) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Word>(weight) != Word{1} << (8 * sizeof(T) - 1);
}

/// An operand of a product, (B, N, H, D) with dense D. Dimensions of size 1 get stride 0, so that reads of missing rows
/// stay at an aligned address.
struct Operand {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  bool packed = false;  // packs of T are aligned, with no remainder
  std::int64_t depth = 0, batch = 0, row = 0, head = 0;

  /// Returns the operand that starts at a batch entry and a head.
  Operand from(std::int64_t first_batch, std::int64_t first_head) const {
    Operand part = *this;
    if (data) part.data += (first_batch * batch + first_head * head) * static_cast<std::int64_t>(size_of(dtype));
    return part;
  }

  Operand() = default;
  explicit Operand(const View& view)
      : data(view.as<std::byte>()),
        dtype(view.dtype),
        depth(view.data ? view.shape[3] : 0),
        batch(view.shape[0] > 1 ? view.strides[0] : 0),
        row(view.shape[1] > 1 ? view.strides[1] : 0),
        head(view.shape[2] > 1 ? view.strides[2] : 0) {
    const auto bytes = static_cast<std::int64_t>(size_of(dtype)), n = std::int64_t{dtype == DType::f64 ? 2 : 4};
    packed = depth % n == 0 && batch % n == 0 && row % n == 0 && head % n == 0 &&
             reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(n * bytes) == 0;
  }
};

/// Returns the element offset of a row.
__device__ inline std::int64_t offset_of(const Operand& x, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return batch * x.batch + head * x.head + row * x.row;
}

/// Rows of an operand in a tile or a visit: the element offset of the first and the step to the next.
struct TileRows {
  std::int64_t first, step;
  int count;
};
__device__ inline TileRows rows_of(const Operand& x, std::int64_t batch, std::int64_t head, const Progression& steps,
                                   std::int64_t begin, int count) {
  return {offset_of(x, batch, head, steps.row + begin * steps.stride), steps.stride * x.row, count};
}

/// Returns elements [column, column + pack) of the row at an offset; 0 past the end.
template <class T>
__device__ ValuePack<T> load(const Operand& x, std::int64_t offset, std::int64_t column) {
  constexpr int n = pack<T>;
  ValuePack<T> result{};
  if (column >= x.depth) return result;
  with_stored<T>(x.dtype, [&]<class S>(S) {
    const S* from = reinterpret_cast<const S*>(x.data) + offset + column;
    if (x.packed) {
      const auto whole = load_whole<Pack<S, static_cast<std::size_t>(n)>>(from);
      POOLGRAD_UNROLL
      for (int e = 0; e < n; ++e) result.value[e] = widened<T>(whole.value[e]);
    } else {
      POOLGRAD_UNROLL
      for (int e = 0; e < n; ++e)
        if (column + e < x.depth) result.value[e] = widened<T>(from[e]);
    }
  });
  return result;
}
template <class T>
__device__ void store(const Operand& x, std::int64_t offset, std::int64_t column, const ValuePack<T>& values) {
  constexpr int n = pack<T>;
  if (column >= x.depth) return;
  with_stored<T>(x.dtype, [&]<class S>(S) {
    S* to = reinterpret_cast<S*>(x.data) + offset + column;
    Pack<S, static_cast<std::size_t>(n)> whole;
    POOLGRAD_UNROLL
    for (int e = 0; e < n; ++e) whole.value[e] = narrowed<S>(values.value[e]);
    if (x.packed) {
      store_whole(to, whole);
    } else {
      POOLGRAD_UNROLL
      for (int e = 0; e < n; ++e)
        if (column + e < x.depth) to[e] = whole.value[e];
    }
  });
}

/// Copies columns from `column` on of `most` rows to shared memory at `at`. Missing rows become 0.
template <class T, class Staged>
__device__ void stage_rows(const Staged& staged, int at, const Operand& x, const TileRows& rows, int most,
                           std::int64_t column) {
  for (int p = static_cast<int>(threadIdx.x); p < most * staged_packs; p += tile_threads<T>) {
    const int row = p / staged_packs, number = p % staged_packs;
    ValuePack<T> values{};
    if (row < rows.count) values = load<T>(x, rows.first + row * rows.step, column + number * pack<T>);
    staged[at + row * staged_stride + number] = values;
  }
}

/// Rounds a row count up to a multiple of rows_of_thread.
__device__ inline int whole_groups(int count) { return (count + rows_of_thread - 1) / rows_of_thread * rows_of_thread; }

/// scores[i * score_stride + j] = <row i of a, row j of b> for existing rows. The first barrier waits for earlier reads
/// of `staged` and `scores`. The new scores are readable after the next barrier.
template <class T, class Staged, class Scores>
__device__ void multiply_rows(const Scores& scores, int first_score, const Staged& staged, const Operand& a,
                              const TileRows& a_rows, const Operand& b, const TileRows& b_rows) {
  constexpr int n = pack<T>, second = tile_rows<T> * staged_stride;
  const int x = static_cast<int>(threadIdx.x) % side<T>, y = static_cast<int>(threadIdx.x) / side<T>;
  const bool wanted = rows_of_thread * y < a_rows.count && x < b_rows.count;
  T sum[rows_of_thread][rows_of_thread] = {};
  for (std::int64_t column = 0; column == 0 || column < a.depth; column += staged_packs * n) {
    __syncthreads();  // all threads have read the staged rows and the scores
    stage_rows<T>(staged, 0, a, a_rows, whole_groups(a_rows.count), column);
    stage_rows<T>(staged, second, b, b_rows, tile_rows<T>, column);
    __syncthreads();
    POOLGRAD_ROLLED
    for (int p = 0; p < staged_packs && wanted; ++p) {
      ValuePack<T> left[rows_of_thread], right[rows_of_thread];
      POOLGRAD_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        left[r] = staged[(rows_of_thread * y + r) * staged_stride + p];
        right[r] = staged[second + (x + side<T> * r) * staged_stride + p];
      }
      POOLGRAD_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        POOLGRAD_UNROLL
        for (int c = 0; c < rows_of_thread; ++c) {
          POOLGRAD_UNROLL
          for (int e = 0; e < n; ++e) sum[r][c] += left[r].value[e] * right[c].value[e];
        }
      }
    }
  }
  if (!wanted) return;
  POOLGRAD_UNROLL
  for (int r = 0; r < rows_of_thread; ++r) {
    POOLGRAD_UNROLL
    for (int c = 0; c < rows_of_thread; ++c)
      scores[first_score + (rows_of_thread * y + r) * score_stride<T> + x + side<T> * c] = sum[r][c];
  }
}

/// The same for small tiles. Writes all scores; those of missing rows are 0.
template <class T, class Staged, class Scores>
__device__ void multiply_few_rows(const Scores& scores, const Staged& staged, const Operand& a, const TileRows& a_rows,
                                  const Operand& b, const TileRows& b_rows) {
  constexpr int n = pack<T>, second = tile_rows<T> * staged_stride, lanes = lanes_of_row<T>;
  const int visited = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  T sum[few_rows] = {};
  for (std::int64_t column = 0; column == 0 || column < a.depth; column += staged_packs * n) {
    __syncthreads();  // all threads have read the staged rows and the scores
    stage_rows<T>(staged, 0, a, a_rows, few_rows, column);
    stage_rows<T>(staged, second, b, b_rows, tile_rows<T>, column);
    __syncthreads();
    POOLGRAD_UNROLL
    for (int p = lane; p < staged_packs; p += lanes) {
      const ValuePack<T> right = staged[second + visited * staged_stride + p];
      POOLGRAD_UNROLL
      for (int r = 0; r < few_rows; ++r) {
        const ValuePack<T> left = staged[r * staged_stride + p];
        POOLGRAD_UNROLL
        for (int e = 0; e < n; ++e) sum[r] += left.value[e] * right.value[e];
      }
    }
  }
  POOLGRAD_UNROLL
  for (int r = 0; r < few_rows; ++r) {
    const T score = warp_reduce<reductions::Sum>(sum[r], lanes);
    if (lane == r % lanes) scores[r * score_stride<T> + visited] = score;
  }
}

/// A thread's share of the results of a tile: `Packs` packs of four rows. With `Few`, partial sums.
template <class T, int Packs, bool Few = false>
struct Results {
  static constexpr int columns = side<T> * Packs * pack<T>;  // of all threads
  ValuePack<T> part[rows_of_thread][static_cast<std::size_t>(Packs)];

  __device__ static int group() { return static_cast<int>(threadIdx.x) / side<T>; }
  __device__ static int row(int r) { return Few ? r : rows_of_thread * group() + r; }
  __device__ static int column(int p) { return (static_cast<int>(threadIdx.x) % side<T> + side<T> * p) * pack<T>; }

  /// Calls f(row of the tile, column, pack) for each pack.
  template <class F>
  __device__ void for_each(const F& f) {
    POOLGRAD_UNROLL
    for (int r = 0; r < rows_of_thread; ++r) {
      POOLGRAD_UNROLL
      for (int p = 0; p < Packs; ++p) f(row(r), column(p), part[r][p]);
    }
  }
  template <class Factors>
  __device__ void scale_rows(const Factors& factors) {
    for_each([&](int row, int, ValuePack<T>& values) {
      const T factor = factors[row];
      POOLGRAD_UNROLL
      for (int e = 0; e < pack<T>; ++e) values.value[e] *= factor;
    });
  }
  /// += weights * rows of x, from `column` on, for the tile's `own_count` rows. Weights of whole_groups(own_count) rows
  /// must be written; no barrier is needed before the call.
  template <class Weights, class Staged>
  __device__ void add_weighted(const Weights& weights, const Staged& staged, const Operand& x, const TileRows& rows,
                               std::int64_t column, int own_count) {
    constexpr int width = side<T> * Packs, at_once = tile_rows<T> / Packs < staged_count<T> / width
                                                         ? tile_rows<T> / Packs
                                                         : staged_count<T> / width;
    const int own = static_cast<int>(threadIdx.x) % side<T>;
    for (int first = 0; first < rows.count; first += at_once) {
      const int count = rows.count - first < at_once ? rows.count - first : at_once;
      __syncthreads();  // staged rows are read, and the weights are written
      for (int p = static_cast<int>(threadIdx.x); p < count * width; p += tile_threads<T>)
        staged[p] = load<T>(x, rows.first + (first + p / width) * rows.step, column + p % width * pack<T>);
      __syncthreads();
      POOLGRAD_ROLLED
      for (int k = Few ? group() : 0; k < count && row(0) < own_count; k += Few ? side<T> : 1) {
        T weight[rows_of_thread];
        POOLGRAD_UNROLL
        for (int r = 0; r < rows_of_thread; ++r) weight[r] = weights[row(r) * score_stride<T> + first + k];
        POOLGRAD_UNROLL
        for (int p = 0; p < Packs; ++p) {
          const ValuePack<T> values = staged[k * width + own + side<T> * p];
          POOLGRAD_UNROLL
          for (int r = 0; r < rows_of_thread; ++r) {
            if (!counts(weight[r])) continue;
            POOLGRAD_UNROLL
            for (int e = 0; e < pack<T>; ++e) part[r][p].value[e] += weight[r] * values.value[e];
          }
        }
      }
    }
  }
  /// Adds the shares of all threads of a small tile. The first threads hold the sums. `memory` is scratch in shared
  /// memory.
  template <class Shared>
  __device__ void add_shares(const Shared& memory) {
    static_assert(Few);
    POOLGRAD_ROLLED
    for (int r = 0; r < few_rows; ++r) {
      __syncthreads();  // all threads have read the memory
      for_each([&](int row, int c, const ValuePack<T>& values) {
        if (row != r) return;
        POOLGRAD_UNROLL
        for (int e = 0; e < pack<T>; ++e) memory[group() * columns + c + e] = values.value[e];
      });
      __syncthreads();
      if (group() > 0) continue;
      for_each([&](int row, int c, ValuePack<T>& values) {
        if (row != r) return;
        POOLGRAD_ROLLED
        for (int y = 1; y < side<T>; ++y) {
          POOLGRAD_UNROLL
          for (int e = 0; e < pack<T>; ++e) values.value[e] += memory[y * columns + c + e];
        }
      });
    }
  }
};

/// Work items of a launch: a tile, a batch entry, a head or group of heads, a chunk of result columns, a part of the
/// visited rows. The order follows the program, so that the longest items start first.
struct TileItems {
  std::int64_t batch, heads, first_head, heads_of_item, chunks, parts = 1;

  struct Item {
    std::int64_t tile;
    std::int32_t batch, head, chunk, part;  // 32 bits: registers are scarce
    bool exists;
  };
  POOLGRAD_HD std::int64_t rounds(const AttentionProgram& program) const {
    return program.head_period == 1 ? heads : (heads + program.head_period - 1) / program.head_period;
  }
  POOLGRAD_HD std::int64_t count(const AttentionProgram& program) const {
    return program.head_period * program.tiles * batch * rounds(program) * chunks * parts;
  }
  /// Returns item i. Heads that agree mod head_period share a tile list; items without a head have exists == false.
  __device__ Item at(const AttentionProgram& program, std::int64_t i) const {
    const auto small = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
    Item item{};
    if (parts > 1) item.part = small(take(i, parts));
    if (chunks > 1) item.chunk = small(take(i, chunks));
    const std::int64_t round = take(i, rounds(program));
    item.batch = small(take(i, batch));
    std::int64_t number = program.longest_first[i];
    item.tile = take(number, program.tiles);
    item.head = small(round);
    if (program.head_period > 1)
      item.head = small(floor_mod(number - first_head, program.head_period) + round * program.head_period);
    item.exists = item.head < heads && (heads_of_item == 1 || item.head % heads_of_item == 0);
    return item;
  }

 private:
  /// Divides i by n and returns the remainder; i must not be negative. A 64-bit division takes many instructions.
  static __device__ std::int64_t take(std::int64_t& i, std::int64_t n) {
    std::int64_t left;
    if ((i | n) >> 32 == 0) {
      const auto small = static_cast<std::uint32_t>(i), by = static_cast<std::uint32_t>(n);
      left = small % by;
      i = small / by;
    } else {
      left = i % n;
      i /= n;
    }
    return left;
  }
};

/// Returns the steps of a run that at least one row of the tile sees. Interval ends never decrease from row to row.
__device__ inline Interval steps_of_tile(const AttentionProgram& program, const AttentionRun& run,
                                         const Progression& tile) {
  if (run.has(AttentionRun::whole)) return {0, run.keys.count};
  if (run.rows.empty()) return {0, 0};
  return {program.steps_seen(run, run.keys, tile.position + run.rows.begin * tile.step).begin,
          program.steps_seen(run, run.keys, tile.position + (run.rows.end - 1) * tile.step).end};
}
/// Returns the steps that row i of the tile sees.
__device__ inline Interval steps_of_row(const AttentionProgram& program, const AttentionRun& run,
                                        const Progression& tile, int i) {
  if (i >= tile.count) return {0, 0};
  if (run.has(AttentionRun::whole)) return {0, run.keys.count};
  if (!run.rows.contains(i)) return {0, 0};
  return program.steps_seen(run, run.keys, tile.position + i * tile.step);
}

/// Throws DeviceError, `[op] ...`, for an operand outside device memory. Skips views without data or elements.
inline void check_views(const char* op, Stream stream, std::initializer_list<const View*> views) {
  for (const View* view : views)
    if (view->data && view->count() > 0) check_operand(op, stream, view->data);
}

/// Maximum number of blocks in a grid. Tests lower it.
inline std::int64_t most_blocks = std::int64_t{1} << 20;

/// Returns one block per item. A GPU starts blocks in order, so each free slot takes the longest remaining item. With
/// more items than blocks, block n takes items n, n + most_blocks, ...
inline LaunchShape shape_of_items(std::int64_t items, std::int64_t threads, std::int64_t shared_bytes) {
  return {{items < most_blocks ? items : most_blocks}, {threads}, shared_bytes};
}

}  // namespace poolgrad::kernels::cuda
