// Indexed additions without atomics. Positions are sorted stably by target. The first position of a run of equal
// targets makes all additions of the run, in order. Results are deterministic and have the bits of the CPU.
//
// A key combines an index and its position in one number. All keys differ, so any sort is stable. Tiles are sorted in
// shared memory. Then sorted runs are merged eight at a time; each key finds its place by binary search in all of them.
#include <algorithm>
#include <bit>
#include <limits>

#include "allocator/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/functors/elementwise.h"
#include "kernels/functors/indexing.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace cuda;

// Sorting.

/// Returns the slice that a position's index selects; `none` if it is skipped or out of range.
struct SliceKey {
  Elements<1> index;
  std::int64_t limit, skip, none;
  POOLGRAD_HD std::int64_t operator()(std::int64_t position) const {
    const std::int64_t value = index_at(index, position), at = wrapped(value, limit);
    return (value == skip && skip != -1) || !is_within(at, limit) ? none : at;
  }
};
/// Returns the element that a position's index selects, among lines of `limit` elements each.
struct ElementKey {
  Elements<1> index;
  std::int64_t limit, steps, inner, none;
  POOLGRAD_HD std::int64_t line_of(std::int64_t position) const {
    return position / (steps * inner) * inner + position % inner;
  }
  POOLGRAD_HD std::int64_t operator()(std::int64_t position) const {
    const std::int64_t at = wrapped(index_at(index, position), limit);
    return is_within(at, limit) ? line_of(position) * limit + at : none;
  }
};

constexpr int tile = 2048, sorting_threads = 1024;
constexpr std::size_t ways = 8;  // runs merged at once

/// Counts, for each `key`, the smaller ones among the first `count` sorted keys; the searches run in lockstep. `width`
/// is a power of two, not less than any count.
template <std::size_t Searches, class Keys>
__device__ void count_smaller(const Keys& keys, const std::int64_t (&begin)[Searches],
                              const std::int64_t (&count)[Searches], const std::int64_t (&key)[Searches],
                              std::int64_t width, std::int64_t (&smaller)[Searches]) {
  POOLGRAD_UNROLL
  for (std::size_t s = 0; s < Searches; ++s) smaller[s] = 0;
  POOLGRAD_ROLLED
  for (std::int64_t step = width; step > 0; step /= 2) {
    POOLGRAD_UNROLL
    for (std::size_t s = 0; s < Searches; ++s) {
      const std::int64_t more = smaller[s] + step;
      if (more <= count[s] && keys[begin[s] + more - 1] < key[s]) smaller[s] = more;
    }
  }
}

/// A block sorts a tile: runs of 32 by counting smaller keys, then pairwise merges.
template <class Key>
__global__ __launch_bounds__(sorting_threads) void sort_tiles(const __grid_constant__ Key key_of, std::int64_t n,
                                                              int shift, std::int64_t* keys) {
  constexpr std::size_t each = tile / sorting_threads;
  constexpr int lanes = threads_per_warp;
  POOLGRAD_SHARED(std::int64_t, staged, 2 * tile);  // source half and target half
  const std::int64_t tiles = (n + tile - 1) / tile;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int size = static_cast<int>(n - t * tile < tile ? n - t * tile : tile);
    int from = 0, to = tile;
    std::int64_t begin[each], count[each], key[each], smaller[each];
    __syncthreads();  // all threads have read the last tile
    POOLGRAD_UNROLL
    for (int k = 0; k < int{each}; ++k) {
      const int i = k * sorting_threads + static_cast<int>(threadIdx.x);
      const std::int64_t position = t * tile + i;
      key[k] = i < size ? key_of(position) << shift | position : std::numeric_limits<std::int64_t>::max();
      staged[i] = key[k];
    }
    __syncthreads();
    POOLGRAD_UNROLL
    for (int k = 0; k < int{each}; ++k) {
      const int i = k * sorting_threads + static_cast<int>(threadIdx.x), run = i / lanes * lanes;
      int place = run;
      for (int other = run; other < run + lanes; ++other)
        place += staged[other] < key[k] || (other < i && staged[other] == key[k]);
      staged[to + place] = key[k];
    }
    for (int width = lanes; width < size; width *= 2) {
      std::swap(from, to);
      __syncthreads();
      POOLGRAD_UNROLL
      for (int k = 0; k < int{each}; ++k) {
        const int i = k * sorting_threads + static_cast<int>(threadIdx.x), other = (i / width ^ 1) * width;
        begin[k] = from + other;
        count[k] = other < size ? (size - other < width ? size - other : width) : 0;
        key[k] = staged[from + i];
      }
      count_smaller(staged, begin, count, key, width, smaller);
      POOLGRAD_UNROLL
      for (int k = 0; k < int{each}; ++k) {
        const int i = k * sorting_threads + static_cast<int>(threadIdx.x);
        if (i < size) staged[to + i / width / 2 * 2 * width + i % width + smaller[k]] = key[k];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < size; i += sorting_threads) keys[t * tile + i] = staged[to + i];
  }
}

/// Merges each `ways` runs of `width` keys into one.
__global__ void merge_runs(const std::int64_t* from, std::int64_t* to, std::int64_t n, std::int64_t width) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    const std::int64_t group = i / (width * int{ways}) * (width * int{ways});
    std::int64_t begin[ways], count[ways], key[ways], smaller[ways], place = group;
    POOLGRAD_UNROLL
    for (int w = 0; w < int{ways}; ++w) {
      begin[w] = group + w * width;
      count[w] = begin[w] < n ? (n - begin[w] < width ? n - begin[w] : width) : 0;
      key[w] = from[i];
    }
    count_smaller(from, begin, count, key, width, smaller);
    POOLGRAD_UNROLL
    for (int w = 0; w < int{ways}; ++w) place += smaller[w];  // includes the preceding keys of its own run
    to[place] = key[0];
  }
}

/// Sorted keys: key >> shift is the target, the low bits are the position.
struct Sorted {
  const std::int64_t* keys;
  std::int64_t n, none;
  int shift;

  POOLGRAD_HD std::int64_t target(std::int64_t i) const { return keys[i] >> shift; }
  POOLGRAD_HD std::int64_t position_of(std::int64_t key) const {
    return key & ((static_cast<std::int64_t>(1) << shift) - 1);
  }
  POOLGRAD_HD std::int64_t position(std::int64_t i) const { return position_of(keys[i]); }
  /// Whether a run of equal targets begins or ends here.
  POOLGRAD_HD bool begins(std::int64_t i) const { return i == 0 || target(i - 1) != target(i); }
  POOLGRAD_HD bool ends(std::int64_t i) const { return i + 1 == n || target(i + 1) != target(i); }
};

/// `scratch` must have sorting_scratch(n) bytes.
template <class Key>
Sorted sort_keys(const char* op, Stream stream, const Key& key, std::int64_t n, std::byte* scratch) {
  const auto width_of = [](std::int64_t x) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(x))); };
  const int shift = width_of(n - 1);
  if (width_of(key.none) + shift > 63)
    throw ValueError("[" + std::string(op) + "] " + std::to_string(n) + " indices of " + std::to_string(key.none) +
                     " places are too many to sort on a GPU");
  auto* from = reinterpret_cast<std::int64_t*>(scratch);
  auto* to = from + n;
  const std::int64_t tiles = (n + tile - 1) / tile;
  cuda::launch(op, &sort_tiles<Key>, {{std::min<std::int64_t>(tiles, 4096)}, {sorting_threads}}, stream, key, n, shift,
               from);
  for (std::int64_t width = tile; width < n; width *= int{ways}) {
    cuda::launch(op, &merge_runs, grid_stride_shape(n), stream, from, to, n, width);
    std::swap(from, to);
  }
  return {from, n, key.none, shift};
}

// Addition of slices.

/// Elements of a slice per lane.
template <class T>
constexpr std::size_t of_lane = 8 / sizeof(T);

/// Elements of a slice that a warp adds to, and the running sums of the current target. With `Packed` a lane uses one
/// access for all of its elements.
template <class T, class S, bool Packed>
struct AddedChunk {
  static constexpr std::size_t accesses = Packed ? 1 : of_lane<T>, each = of_lane<T> / accesses;
  static constexpr std::size_t rows = Packed ? 8 : 4;  // rows added at once
  using Access = cuda::Pack<S, each>;
  S* out;
  const S* x;
  bool there[accesses];
  std::int64_t at[accesses][2];
  T sum[accesses][each] = {};

  __device__ AddedChunk(const Elements<2>& slice, std::int64_t begin)
      : out(reinterpret_cast<S*>(slice.data[0])), x(reinterpret_cast<const S*>(slice.data[1])) {
    const int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
    POOLGRAD_UNROLL
    for (int a = 0; a < int{accesses}; ++a) {
      const std::int64_t element = begin + (a * threads_per_warp + lane) * int{each};
      there[a] = element < slice.count;
      at[a][0] = at[a][1] = element;
      if (!Packed && there[a]) offsets_at(slice, element, at[a]);
    }
  }

  /// Adds up to `rows` rows, those of lanes from `first` on that are set in `found`. Loads all rows, and the old values
  /// of targets that begin there, before any addition. Each lane holds the offsets of its row and target.
  __device__ void add(int first, unsigned found, unsigned begins, unsigned ends, std::int64_t row,
                      std::int64_t target) {
    Access added[rows][accesses] = {}, kept[rows][accesses] = {};
    POOLGRAD_UNROLL
    for (int r = 0; r < int{rows}; ++r) {
      const std::int64_t from = __shfl_sync(all_threads_of_warp, row, first + r);
      const std::int64_t to = __shfl_sync(all_threads_of_warp, target, first + r);
      POOLGRAD_UNROLL
      for (int a = 0; a < int{accesses}; ++a) {
        if (found >> (first + r) & there[a]) added[r][a] = cuda::load_whole<Access>(x + from + at[a][1]);
        if (begins >> (first + r) & there[a]) kept[r][a] = cuda::load_whole<Access>(out + to + at[a][0]);
      }
    }
    POOLGRAD_UNROLL
    for (int r = 0; r < int{rows}; ++r) {
      POOLGRAD_UNROLL
      for (int a = 0; a < int{accesses}; ++a) {
        POOLGRAD_UNROLL
        for (int e = 0; e < int{each}; ++e) {
          if (begins >> (first + r) & 1) sum[a][e] = cuda::widened<T>(kept[r][a].value[e]);
          if (found >> (first + r) & 1) sum[a][e] += cuda::widened<T>(added[r][a].value[e]);
        }
      }
      const std::int64_t to = __shfl_sync(all_threads_of_warp, target, first + r);
      if (!(ends >> (first + r) & 1)) continue;
      POOLGRAD_UNROLL
      for (int a = 0; a < int{accesses}; ++a) {
        Access result;
        POOLGRAD_UNROLL
        for (int e = 0; e < int{each}; ++e) result.value[e] = cuda::narrowed<S>(sum[a][e]);
        if (there[a]) cuda::store_whole(out + to + at[a][0], result);
      }
    }
  }
};

/// Makes the additions of runs that begin at keys [first, first + 32), for the chunk of the slice at `begin`.
template <class T, class S, bool Packed>
__device__ void add_runs(const Sorted& sorted, const Elements<2>& slice, const Elements<1>& lead, std::int64_t stride,
                         std::int64_t first, std::int64_t begin) {
  AddedChunk<T, S, Packed> chunk(slice, begin);
  constexpr unsigned rows_of_one = (1u << AddedChunk<T, S, Packed>::rows) - 1;
  std::int64_t i = first + threadIdx.x % threads_per_warp;
  unsigned begins =
      __ballot_sync(all_threads_of_warp, i < sorted.n && sorted.target(i) != sorted.none && sorted.begins(i));
  if (begins == 0) return;
  std::int64_t run = -1;  // target of the run that continues from earlier keys
  unsigned found = 0, ends = 0;
  do {
    const bool real = i < sorted.n;
    const std::int64_t key = real ? sorted.keys[i] : -1, target = key >> sorted.shift;
    const unsigned earlier = (2u << (threadIdx.x % threads_per_warp)) - 1;  // this lane and all before it
    const bool taken = real && target != sorted.none && ((begins & earlier) != 0 || target == run);
    std::int64_t row[1] = {};
    if (taken) offsets_at(lead, sorted.position_of(key), row);
    found = __ballot_sync(all_threads_of_warp, taken);
    ends = __ballot_sync(all_threads_of_warp, taken && sorted.ends(i));
    POOLGRAD_ROLLED
    for (int at = 0; at < threads_per_warp; at += int{AddedChunk<T, S, Packed>::rows})
      if ((found >> at & rows_of_one) != 0) chunk.add(at, found, begins, ends, row[0], target * stride);
    run = __shfl_sync(all_threads_of_warp, target, threads_per_warp - 1);
    begins = 0;
    i += threads_per_warp;
  } while ((found & ~ends) >> (threads_per_warp - 1) != 0);  // the last run has not ended
}

/// A warp takes 32 keys and a chunk of the slice.
template <class T>
__global__ __launch_bounds__(256, 2) void add_slices(const __grid_constant__ Sorted sorted,
                                                     const __grid_constant__ Elements<2> slice,
                                                     const __grid_constant__ Elements<1> lead, std::int64_t stride,
                                                     bool packed) {
  constexpr int lanes = threads_per_warp, chunk = lanes * int{of_lane<T>};
  const std::int64_t chunks = (slice.count + chunk - 1) / chunk, items = (sorted.n + lanes - 1) / lanes * chunks;
  POOLGRAD_ROLLED
  for (std::int64_t item = grid_thread() / lanes; item < items; item += grid_threads() / lanes) {
    const std::int64_t keys = item / chunks, begin = (item - keys * chunks) * chunk;
    cuda::with_element<T, false>(slice.dtype[0], [&]<class S>(S) {
      if (packed)
        add_runs<T, S, true>(sorted, slice, lead, stride, keys * lanes, begin);
      else
        add_runs<T, S, false>(sorted, slice, lead, stride, keys * lanes, begin);
    });
  }
}

/// Adds the slice of `x` at lead.offset(i) to the slice of `out` at index[i] * stride for every position i. Skips
/// indices equal to `skip` (-1: none). Sums in the compute type.
void add_at(const char* op, Stream stream, const View& out_slice, std::int64_t stride, std::int64_t limit,
            const View& x_slice, const View& lead, const View& index, std::int64_t skip) {
  const std::int64_t n = index.count();
  const Workspace<std::byte> scratch(stream, op, sorting_scratch(n));
  if (n == 0 || limit == 0 || out_slice.count() == 0) return;
  for (const View& view : {out_slice, x_slice, index}) cuda::check_operand(op, stream, view.data);
  const SliceKey key{cuda::elements_of<std::int64_t>(std::array{index}, true), limit, skip, limit};
  const Sorted sorted = sort_keys(op, stream, key, n, scratch.data());
  const auto rows = cuda::elements_of<std::int64_t>(std::array{lead}, true);
  with_compute_type(out_slice.dtype, [&]<class T>(T) {
    constexpr std::int64_t width = cuda::pack<T>, chunk = threads_per_warp * int{of_lane<T>};
    const auto slice = cuda::elements_of<T>(std::array{out_slice, x_slice});
    bool packed = slice.packs * width == slice.count && stride % width == 0;
    for (int d = 0; d < rows.rank; ++d) packed &= rows.strides[0][d] % width == 0;
    const std::int64_t windows = (n + threads_per_warp - 1) / threads_per_warp,
                       items = windows * ((slice.count + chunk - 1) / chunk);
    cuda::launch(op, &add_slices<T>, {{std::min<std::int64_t>((items + 7) / 8, 65536)}, {256}}, stream, sorted, slice,
                 rows, stride, packed);
  });
}

// Scatters of elements.

/// In place of a functor: the last element replaces all others.
struct Move {};

/// Stores an element of x, or combines it with the current one and rounds each time.
template <class T, class F>
POOLGRAD_HD void put(std::byte* out, std::int64_t to, const std::byte* x, std::int64_t from, DType dtype) {
  cuda::with_element<T, false>(dtype, [&]<class S>(S) {
    const S value = reinterpret_cast<const S*>(x)[from];
    S& place = reinterpret_cast<S*>(out)[to];
    if constexpr (std::is_same_v<F, Move>)
      place = value;
    else
      place = cuda::narrowed<S>(F::value(cuda::widened<T>(place), cuda::widened<T>(value)));
  });
}

/// Steps along the dimension of index, out and x.
struct Steps {
  std::int64_t count, index, out, x, limit;
};

/// One thread per line. Operands: index, out, x.
template <class T, class F>
__global__ void scatter_lines(const __grid_constant__ Elements<3> lines, const __grid_constant__ Steps steps) {
  for (std::int64_t i = grid_thread(); i < lines.count; i += grid_threads()) {
    std::int64_t offset[3];
    offsets_at(lines, i, offset);
    const auto* const index = reinterpret_cast<const std::int64_t*>(lines.data[0]) + offset[0];
    for (std::int64_t j = 0; j < steps.count; ++j) {
      const std::int64_t at = wrapped(index[j * steps.index], steps.limit);
      if (is_within(at, steps.limit))
        put<T, F>(lines.data[1], offset[1] + at * steps.out, lines.data[2], offset[2] + j * steps.x, lines.dtype[1]);
    }
  }
}

/// One thread per sorted position. The last of a run is stored, or the first combines the whole run.
template <class T, class F>
__global__ void scatter_sorted(const __grid_constant__ Sorted sorted, const __grid_constant__ ElementKey key,
                               const __grid_constant__ Elements<3> lines, const __grid_constant__ Steps steps) {
  constexpr bool combines = !std::is_same_v<F, Move>;
  for (std::int64_t i = grid_thread(); i < sorted.n; i += grid_threads()) {
    const std::int64_t target = sorted.target(i);
    if (target == sorted.none || !(combines ? sorted.begins(i) : sorted.ends(i))) continue;
    std::int64_t offset[3];
    offsets_at(lines, target / steps.limit, offset);
    const std::int64_t to = offset[1] + target % steps.limit * steps.out;
    std::int64_t k = i;
    do {
      const std::int64_t step = sorted.position(k) / key.inner % steps.count;
      put<T, F>(lines.data[1], to, lines.data[2], offset[2] + step * steps.x, lines.dtype[1]);
      ++k;
    } while (combines && k < sorted.n && sorted.target(k) == target);
  }
}

template <class T, class F>
void scatter_as(const char* op, Stream stream, const View& out, int dim, const View& index, const View& x) {
  const std::int64_t n = index.count(), count = index.shape[dim], limit = out.shape[dim];
  if (n == 0) return;
  const bool walks = scatter_walks(n / count, count);
  View like = out;
  std::copy_n(index.shape, index.rank, like.shape);
  const auto lines =
      cuda::elements_of<T>(std::array{without(index, dim), without(like, dim), without(x, dim)}, /*row_major=*/true);
  const Steps steps{count, index.strides[dim], out.strides[dim], x.strides[dim], limit};
  for (const View& view : {index, x}) cuda::check_operand(op, stream, view.data);
  if (limit > 0) cuda::check_operand(op, stream, out.data);
  if (walks) return cuda::launch(op, &scatter_lines<T, F>, grid_stride_shape(lines.count), stream, lines, steps);
  const Workspace<std::byte> scratch(stream, op, sorting_scratch(n));
  if (limit == 0) return;
  std::int64_t inner = 1;
  for (int d = dim + 1; d < index.rank; ++d) inner *= index.shape[d];
  const ElementKey key{cuda::elements_of<std::int64_t>(std::array{index}, true), limit, count, inner,
                       lines.count * limit};
  const Sorted sorted = sort_keys(op, stream, key, n, scratch.data());
  cuda::launch(op, &scatter_sorted<T, F>, grid_stride_shape(n), stream, sorted, key, lines, steps);
}

}  // namespace

void on_cuda::index_add(Stream stream, const View& out, int dim, const View& index, const View& x) {
  View lead = index;
  lead.strides[0] = x.strides[dim];
  add_at("index_add", stream, without(out, dim), out.strides[dim], out.shape[dim], without(x, dim), lead, index, -1);
}

void on_cuda::embedding_backward(Stream stream, const View& dtable, const View& grad, const View& index,
                                 std::int64_t padding) {
  View lead = grad;
  lead.rank = index.rank;
  add_at("embedding_backward", stream, without(dtable, 0), dtable.strides[0], dtable.shape[0], last_dimension(grad),
         lead, index, padding);
}

void on_cuda::scatter(Stream stream, const View& out, int dim, const View& index, const View& x) {
  with_word(x.dtype, [&]<class Word>(Word) { scatter_as<Word, Move>("scatter", stream, out, dim, index, x); });
}

void on_cuda::scatter_reduce(Stream stream, BinaryOp op, const View& out, int dim, const View& index, const View& x) {
  with_compute_type(out.dtype, [&]<class T>(T) {
    with_combination(op, [&]<class F>(F) {
      scatter_as<T, typename F::template on<T>>("scatter_reduce", stream, out, dim, index, x);
    });
  });
}

}  // namespace poolgrad::kernels
