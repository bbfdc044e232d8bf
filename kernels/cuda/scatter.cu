// Additions at indices, without atomics: positions are sorted by what they point at, stably, and whoever comes first in
// a run of equal indices makes all additions of the run, in order. So results do not depend on what runs first, and
// have the bits of the CPU.
//
// A key is an index and the position that it stands at, in one number: all keys differ, and any order that sorts them
// is the stable one. Tiles are sorted by counting who is smaller; then sorted runs are merged two by two, each key
// finding its place by binary search in the other run.
#include <algorithm>
#include <bit>
#include <limits>

#include "allocator/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/definition/indexing.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace cuda;

// Sorting.

/// The slice that a position's index names; `none` where that is outside or skipped.
struct SliceKey {
  Elements<1> index;
  std::int64_t limit, skip, none;
  POOLGRAD_HD std::int64_t operator()(std::int64_t position) const {
    const std::int64_t value = index_at(index, position), at = wrapped(value, limit);
    return (value == skip && skip != -1) || !is_within(at, limit) ? none : at;
  }
};
/// The element that it names, of as many lines of `limit` elements as the index has.
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

constexpr int tile = 256;

template <class Key>
__global__ void sort_tiles(const __grid_constant__ Key key_of, std::int64_t n, int shift, std::int64_t* keys) {
  POOLGRAD_SHARED(std::int64_t, staged, tile);
  const std::int64_t tiles = (n + tile - 1) / tile;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t position = t * tile + threadIdx.x;
    const int size = static_cast<int>(n - t * tile < tile ? n - t * tile : tile);
    const bool real = position < n;
    const std::int64_t key = real ? key_of(position) << shift | position : 0;
    __syncthreads();  // the tile before has been read
    if (real) staged[threadIdx.x] = key;
    __syncthreads();
    int rank = 0;
    for (int i = 0; i < size; ++i) rank += staged[i] < key;
    if (real) keys[t * tile + rank] = key;
  }
}

/// Runs of `width` keys become runs of twice as many.
__global__ void merge_runs(const std::int64_t* from, std::int64_t* to, std::int64_t n, std::int64_t width) {
  for (std::int64_t i = grid_thread(); i < n; i += grid_threads()) {
    const std::int64_t run = i / width, pair = run / 2 * 2 * width, key = from[i];
    const std::int64_t other = (run ^ 1) * width;
    std::int64_t low = other < n ? other : n, high = other + width < n ? other + width : n;
    const std::int64_t begin = low;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (from[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    to[pair + (i - run * width) + (low - begin)] = key;
  }
}

/// Keys in order: key >> shift is what they point at, the rest the position.
struct Sorted {
  const std::int64_t* keys;
  std::int64_t n, none;
  int shift;

  POOLGRAD_HD std::int64_t target(std::int64_t i) const { return keys[i] >> shift; }
  POOLGRAD_HD std::int64_t position(std::int64_t i) const {
    return keys[i] & ((static_cast<std::int64_t>(1) << shift) - 1);
  }
  /// Whether a run of equal targets begins, or ends, here.
  POOLGRAD_HD bool begins(std::int64_t i) const { return i == 0 || target(i - 1) != target(i); }
  POOLGRAD_HD bool ends(std::int64_t i) const { return i + 1 == n || target(i + 1) != target(i); }
};

/// `scratch` has sorting_scratch(n) bytes.
template <class Key>
Sorted sort_keys(const char* op, Stream stream, const Key& key, std::int64_t n, std::byte* scratch) {
  const auto width_of = [](std::int64_t x) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(x))); };
  const int shift = width_of(n - 1);
  if (width_of(key.none) + shift > 63)
    throw ValueError("[" + std::string(op) + "] " + std::to_string(n) + " indices of " + std::to_string(key.none) +
                     " places are more than a GPU sorts");
  auto* from = reinterpret_cast<std::int64_t*>(scratch);
  auto* to = from + n;
  const std::int64_t tiles = (n + tile - 1) / tile;
  cuda::launch(op, &sort_tiles<Key>, {{std::min<std::int64_t>(tiles, 4096)}, {tile}}, stream, key, n, shift, from);
  for (std::int64_t width = tile; width < n; width *= 2) {
    cuda::launch(op, &merge_runs, grid_stride_shape(n), stream, from, to, n, width);
    std::swap(from, to);
  }
  return {from, n, key.none, shift};
}

// Adding slices.

/// A warp for 32 packs of a slice that is added to.
template <class T>
__global__ void add_slices(const __grid_constant__ Sorted sorted, const __grid_constant__ Elements<2> slice,
                           const __grid_constant__ Elements<1> lead, std::int64_t stride, bool packed) {
  constexpr int n = cuda::pack<T>, lanes = 32;
  const std::int64_t chunks = (slice.count + lanes * n - 1) / (lanes * n);
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / lanes);
  const auto lane = static_cast<std::int64_t>(threadIdx.x % lanes);
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
       item < sorted.n * chunks; item += warps) {
    const std::int64_t first = item / chunks, begin = item % chunks * (lanes * n), target = sorted.target(first);
    if (target == sorted.none || !sorted.begins(first)) continue;
    const auto each_row = [&](const auto& body) {
      for (std::int64_t i = first; i < sorted.n && sorted.target(i) == target; ++i) {
        std::int64_t row[1];
        offsets_at(lead, sorted.position(i), row);
        body(row[0]);
      }
    };
    cuda::with_element<T, false>(slice.dtype[0], [&]<class S>(S) {
      S* const out = reinterpret_cast<S*>(slice.data[0]) + target * stride;
      const S* const x = reinterpret_cast<const S*>(slice.data[1]);
      using Packed = cuda::Pack<S, static_cast<std::size_t>(n)>;
      if (packed) {
        const std::int64_t e = begin + lane * n;
        if (e >= slice.count) return;
        auto kept = cuda::load_whole<Packed>(out + e);
        T sum[static_cast<std::size_t>(n)];
        POOLGRAD_UNROLL
        for (int k = 0; k < n; ++k) sum[k] = cuda::widened<T>(kept.value[k]);
        each_row([&](std::int64_t row) {
          const auto added = cuda::load_whole<Packed>(x + row + e);
          POOLGRAD_UNROLL
          for (int k = 0; k < n; ++k) sum[k] += cuda::widened<T>(added.value[k]);
        });
        POOLGRAD_UNROLL
        for (int k = 0; k < n; ++k) kept.value[k] = cuda::narrowed<S>(sum[k]);
        cuda::store_whole(out + e, kept);
        return;
      }
      for (int k = 0; k < n; ++k) {
        const std::int64_t e = begin + k * lanes + lane;
        if (e >= slice.count) return;
        std::int64_t offset[2];
        offsets_at(slice, e, offset);
        T sum = cuda::widened<T>(out[offset[0]]);
        each_row([&](std::int64_t row) { sum += cuda::widened<T>(x[row + offset[1]]); });
        out[offset[0]] = cuda::narrowed<S>(sum);
      }
    });
  }
}

/// The slice of `out` at index[i] * stride gets the slice of `x` at lead.offset(i) added, for every position i but
/// those whose index is `skip` (-1: none), summed in the compute type.
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
    constexpr std::int64_t width = cuda::pack<T>;
    const auto slice = cuda::elements_of<T>(std::array{out_slice, x_slice});
    bool packed = slice.packs * width == slice.count && stride % width == 0;
    for (int d = 0; d < rows.rank; ++d) packed &= rows.strides[0][d] % width == 0;
    const std::int64_t items = n * ((slice.count + 32 * width - 1) / (32 * width));
    cuda::launch(op, &add_slices<T>, {{std::min<std::int64_t>((items + 7) / 8, 65536)}, {256}}, stream, sorted, slice,
                 rows, stride, packed);
  });
}

// Scatters of elements.

/// What becomes of an element: x is moved there, or added with one rounding each time.
template <class T, bool Add>
POOLGRAD_HD void put(std::byte* out, std::int64_t to, const std::byte* x, std::int64_t from, DType dtype) {
  cuda::with_element<T, false>(dtype, [&]<class S>(S) {
    const S value = reinterpret_cast<const S*>(x)[from];
    S& place = reinterpret_cast<S*>(out)[to];
    if constexpr (Add)
      place = cuda::narrowed<S>(cuda::widened<T>(place) + cuda::widened<T>(value));
    else
      place = value;
  });
}

/// Steps along the dimension of index, out and x.
struct Steps {
  std::int64_t count, index, out, x, limit;
};

/// A thread for a line. Operands: index, out, x.
template <class T, bool Add>
__global__ void scatter_lines(const __grid_constant__ Elements<3> lines, const __grid_constant__ Steps steps) {
  for (std::int64_t i = grid_thread(); i < lines.count; i += grid_threads()) {
    std::int64_t offset[3];
    offsets_at(lines, i, offset);
    const auto* const index = reinterpret_cast<const std::int64_t*>(lines.data[0]) + offset[0];
    for (std::int64_t j = 0; j < steps.count; ++j) {
      const std::int64_t at = wrapped(index[j * steps.index], steps.limit);
      if (is_within(at, steps.limit))
        put<T, Add>(lines.data[1], offset[1] + at * steps.out, lines.data[2], offset[2] + j * steps.x, lines.dtype[1]);
    }
  }
}

/// A thread for a position in the order of targets: of a run, the last is what is left, or the first adds them all.
template <class T, bool Add>
__global__ void scatter_sorted(const __grid_constant__ Sorted sorted, const __grid_constant__ ElementKey key,
                               const __grid_constant__ Elements<3> lines, const __grid_constant__ Steps steps) {
  for (std::int64_t i = grid_thread(); i < sorted.n; i += grid_threads()) {
    const std::int64_t target = sorted.target(i);
    if (target == sorted.none || !(Add ? sorted.begins(i) : sorted.ends(i))) continue;
    std::int64_t offset[3];
    offsets_at(lines, target / steps.limit, offset);
    const std::int64_t to = offset[1] + target % steps.limit * steps.out;
    std::int64_t k = i;
    do {
      const std::int64_t step = sorted.position(k) / key.inner % steps.count;
      put<T, Add>(lines.data[1], to, lines.data[2], offset[2] + step * steps.x, lines.dtype[1]);
      ++k;
    } while (Add && k < sorted.n && sorted.target(k) == target);
  }
}

template <class T, bool Add>
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
  if (walks) return cuda::launch(op, &scatter_lines<T, Add>, grid_stride_shape(lines.count), stream, lines, steps);
  const Workspace<std::byte> scratch(stream, op, sorting_scratch(n));
  if (limit == 0) return;
  std::int64_t inner = 1;
  for (int d = dim + 1; d < index.rank; ++d) inner *= index.shape[d];
  const ElementKey key{cuda::elements_of<std::int64_t>(std::array{index}, true), limit, count, inner,
                       lines.count * limit};
  const Sorted sorted = sort_keys(op, stream, key, n, scratch.data());
  cuda::launch(op, &scatter_sorted<T, Add>, grid_stride_shape(n), stream, sorted, key, lines, steps);
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
  with_word(x.dtype, [&]<class Word>(Word) { scatter_as<Word, false>("scatter", stream, out, dim, index, x); });
}

void on_cuda::scatter_add(Stream stream, const View& out, int dim, const View& index, const View& x) {
  with_compute_type(out.dtype, [&]<class T>(T) { scatter_as<T, true>("scatter_add", stream, out, dim, index, x); });
}

}  // namespace poolgrad::kernels
