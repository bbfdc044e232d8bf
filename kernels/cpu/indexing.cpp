#include <array>
#include <cstring>

#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/strided_runs.h"
#include "kernels/cpu/workspace.h"
#include "kernels/dispatch.h"
#include "kernels/indexing.h"
#include "kernels/view.h"

namespace poolgrad::kernels {
// View arithmetic that gathers and scatters share. Internal to kernels/cpu.

/// Negative indices count from the end.
inline std::int64_t wrap(std::int64_t index, std::int64_t limit) { return index < 0 ? index + limit : index; }

/// x at index 0 of dimension `dim`.
inline View without(View x, int dim) {
  for (int d = dim; d + 1 < x.rank; ++d) {
    x.shape[d] = x.shape[d + 1];
    x.strides[d] = x.strides[d + 1];
  }
  --x.rank;
  return x;
}

namespace {

constexpr std::int64_t range_size = 16384;  // elements

/// x with the shape of `like` and no step along `dim`: what index arithmetic adds to.
View flattened(View x, int dim, const View& like) {
  std::copy_n(like.shape, like.rank, x.shape);
  x.strides[dim] = 0;
  return x;
}

/// For all i in row-major order of `index`: the slice of `out` at lead_out.offset(i) becomes the slice of `x` at
/// index[i] * stride.
void select_slices(const View& out_slice, const View& lead_out, const View& x_slice, std::int64_t stride,
                   std::int64_t limit, const View& index) {
  std::array slices{out_slice, x_slice};
  const std::int64_t size = out_slice.count(), n = index.count();
  if (size == 0 || n == 0) return;
  sort_dimensions(slices);
  merge_dimensions(slices);
  const bool dense = slices[0].contiguous() && slices[1].contiguous();
  with_word(size_of(x_slice.dtype), [&]<class Word>(Word) {
    parallel_ranges(n, std::max<std::int64_t>(1, range_size / size), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Word* to = out_slice.as<Word>() + lead_out.offset(i);
        const Word* from =
            x_slice.as<const Word>() + wrap(index.as<const std::int64_t>()[index.offset(i)], limit) * stride;
        if (dense) {
          std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(Word));
          continue;
        }
        for_each_run(slices, 0, size, [&](const auto& offset, const auto& strides, std::int64_t length) {
          for (std::int64_t k = 0; k < length; ++k) to[offset[0] + k * strides[0]] = from[offset[1] + k * strides[1]];
        });
      }
    });
  });
}

}  // namespace

std::int64_t find_out_of_range(Stream stream, View index, std::int64_t limit, bool negative) {
  if (!runs_on_cpu(stream, "find_out_of_range", traffic(index))) return -1;
  const Source<std::int64_t> source(index);
  const std::int64_t lowest = negative ? -limit : 0, n = index.count();
  std::int64_t buffer[block_size];
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    const std::int64_t* block = source.read(begin, count, buffer);
    for (std::int64_t i = 0; i < count; ++i)
      if (block[i] < lowest || block[i] >= limit) return begin + i;
  }
  return -1;
}

void gather(Stream stream, View out, View x, int dim, View index) {
  if (!runs_on_cpu(stream, "gather", traffic(out, out, index))) return;
  const std::array views{out, flattened(x, dim, index), index};
  const std::int64_t stride = x.strides[dim], limit = x.shape[dim];
  with_word(size_of(x.dtype), [&]<class Word>(Word) {
    parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
      for_each_run(views, begin, end - begin, [&](const auto& offset, const auto& strides, std::int64_t length) {
        Word* to = out.as<Word>() + offset[0];
        const Word* from = x.as<const Word>() + offset[1];
        const auto* at = index.as<const std::int64_t>() + offset[2];
        for (std::int64_t k = 0; k < length; ++k)
          to[k * strides[0]] = from[k * strides[1] + wrap(at[k * strides[2]], limit) * stride];
      });
    });
  });
}

void index_select(Stream stream, View out, View x, int dim, View index) {
  if (dim == x.rank - 1 && x.rank > 1) {  // every row picks the same columns
    View same = out;
    same.data = index.data;
    same.dtype = DType::i64;
    std::fill_n(same.strides, dim, 0);
    same.strides[dim] = index.strides[0];
    return gather(stream, out, x, dim, same);
  }
  if (!runs_on_cpu(stream, "index_select", traffic(out, out))) return;
  View lead = index;
  lead.strides[0] = out.strides[dim];
  select_slices(without(out, dim), lead, without(x, dim), x.strides[dim], x.shape[dim], index);
}

void embedding(Stream stream, View out, View table, View index) {
  if (!runs_on_cpu(stream, "embedding", traffic(out, out))) return;
  View lead = out, slice = out;
  lead.rank = index.rank;
  slice.rank = 1;
  slice.shape[0] = out.shape[out.rank - 1];
  slice.strides[0] = out.strides[out.rank - 1];
  select_slices(slice, lead, without(table, 0), table.strides[0], table.shape[0], index);
}

namespace {

/// Positions sorted by index, stably: those of index v are order[first[v]] ... order[first[v + 1] - 1].
struct ByIndex {
  const std::int64_t *first, *order;
};

std::int64_t by_index_size(std::int64_t limit, std::int64_t positions) { return limit + 1 + positions; }

ByIndex sort_by_index(const View& index, std::int64_t limit, std::int64_t skip, std::int64_t* workspace) {
  const Source<std::int64_t> source(index);
  std::int64_t *first = workspace, *order = workspace + limit + 1;
  std::int64_t buffer[block_size];
  const std::int64_t n = index.count();
  const auto each = [&](const auto& body) {
    for (std::int64_t begin = 0; begin < n; begin += block_size) {
      const std::int64_t count = std::min(block_size, n - begin);
      const std::int64_t* block = source.read(begin, count, buffer);
      for (std::int64_t i = 0; i < count; ++i)
        if (block[i] != skip || skip == -1) body(wrap(block[i], limit), begin + i);
    }
  };
  std::fill_n(first, limit + 1, 0);
  each([&](std::int64_t v, std::int64_t) { ++first[v]; });
  std::int64_t sum = 0;
  for (std::int64_t v = 0; v <= limit; ++v) {  // first[v] is where v ends, then moves to where it begins
    sum += first[v];
    first[v] = sum;
  }
  for (std::int64_t begin = (n - 1) / block_size * block_size; begin >= 0 && n > 0; begin -= block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    const std::int64_t* block = source.read(begin, count, buffer);
    for (std::int64_t i = count - 1; i >= 0; --i)
      if (block[i] != skip || skip == -1) order[--first[wrap(block[i], limit)]] = begin + i;
  }
  return {first, order};
}

/// For every position i: the slice of `out` at index[i] * stride gets the slice of `x` at lead.offset(i) added, in the
/// order of i, summed in the compute type.
void add_slices(const View& out_slice, std::int64_t stride, std::int64_t limit, const View& x_slice, const View& lead,
                const ByIndex& positions) {
  std::array slices{out_slice, x_slice};
  sort_dimensions(slices);
  merge_dimensions(slices);
  const std::int64_t size = slices[0].count(), blocks = (size + block_size - 1) / block_size;
  with_compute_type(out_slice.dtype, [&]<class T>(T) {
    using V = typename LaneType<T>::type;
    const Source<T> old(slices[0]), source(slices[1]);
    const Sink<T> sink(slices[0]);
    parallel_items(limit * blocks, [&](std::int64_t item, int) {
      const std::int64_t v = item / blocks, begin = item % blocks * block_size;
      const std::int64_t count = std::min(block_size, size - begin);
      if (positions.first[v] == positions.first[v + 1]) return;
      alignas(64) T sum[block_size], buffer[block_size];
      std::copy_n(old.read(begin, count, buffer, v * stride), count, sum);
      for (std::int64_t i = positions.first[v]; i < positions.first[v + 1]; ++i) {
        const T* x = source.read(begin, count, buffer, lead.offset(positions.order[i]));
        map_block<T>(
            count, sum, [](V a, V b) { return a + b; }, sum, x);
      }
      sink.finish(begin, count, sum, v * stride);
    });
  });
}

/// Walks index, x and out for a scatter: body(out offset, x offset), in order along `dim`; other lines in parallel.
template <class Body>
void scatter_walk(const View& out, int dim, const View& index, const View& x, const Body& body) {
  View out_slice = out;
  std::copy_n(index.shape, index.rank, out_slice.shape);
  const std::array slices{without(index, dim), without(out_slice, dim), without(x, dim)};
  const std::int64_t steps = index.shape[dim], lines = slices[0].count(), limit = out.shape[dim];
  if (steps == 0) return;
  const std::int64_t per_range = std::max<std::int64_t>(1, std::min<std::int64_t>(256, 8192 / steps));
  parallel_ranges(lines, per_range, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = 0; j < steps; ++j)
      for_each_run(slices, begin, end - begin, [&](const auto& offset, const auto& strides, std::int64_t length) {
        const auto* at = index.as<const std::int64_t>() + offset[0] + j * index.strides[dim];
        for (std::int64_t k = 0; k < length; ++k)
          body(offset[1] + k * strides[1] + wrap(at[k * strides[0]], limit) * out.strides[dim],
               offset[2] + k * strides[2] + j * x.strides[dim]);
      });
  });
}

}  // namespace

void index_add(Stream stream, View out, int dim, View index, View x) {
  const std::int64_t limit = out.shape[dim];
  const Workspace<std::int64_t> workspace(stream, "index_add", by_index_size(limit, index.count()));
  if (!runs_on_cpu(stream, "index_add", traffic(x, x, x))) return;
  View lead = index;
  lead.strides[0] = x.strides[dim];
  add_slices(without(out, dim), out.strides[dim], limit, without(x, dim), lead,
             sort_by_index(index, limit, -1, workspace.data()));
}

void embedding_backward(Stream stream, View dtable, View grad, View index, std::int64_t padding) {
  const std::int64_t limit = dtable.shape[0];
  const Workspace<std::int64_t> workspace(stream, "embedding_backward", by_index_size(limit, index.count()));
  if (!runs_on_cpu(stream, "embedding_backward", traffic(grad, grad, grad))) return;
  View lead = grad, slice = grad;
  lead.rank = index.rank;
  slice.rank = 1;
  slice.shape[0] = grad.shape[grad.rank - 1];
  slice.strides[0] = grad.strides[grad.rank - 1];
  add_slices(without(dtable, 0), dtable.strides[0], limit, slice, lead,
             sort_by_index(index, limit, padding, workspace.data()));
}

void scatter(Stream stream, View out, int dim, View index, View x) {
  if (!runs_on_cpu(stream, "scatter", traffic(x, x, index))) return;
  with_word(size_of(x.dtype), [&]<class Word>(Word) {
    scatter_walk(out, dim, index, x,
                 [to = out.as<Word>(), from = x.as<const Word>()](std::int64_t o, std::int64_t i) { to[o] = from[i]; });
  });
}

void scatter_add(Stream stream, View out, int dim, View index, View x) {
  if (!runs_on_cpu(stream, "scatter_add", traffic(x, x, x, index))) return;
  const auto run = [&]<class S, class T>(S, T) {
    scatter_walk(out, dim, index, x, [to = out.as<S>(), from = x.as<const S>()](std::int64_t o, std::int64_t i) {
      to[o] = static_cast<S>(static_cast<T>(to[o]) + static_cast<T>(from[i]));
    });
  };
  switch (out.dtype) {
    case DType::i64: return run(std::int64_t{}, std::int64_t{});
    case DType::i32: return run(std::int32_t{}, std::int64_t{});
    case DType::u8: return run(std::uint8_t{}, std::int64_t{});
    case DType::boolean: return run(bool{}, std::int64_t{});
    default: with_floating_storage(out.dtype, [&]<class S>(S) { run(S{}, simd::Compute<S>{}); });
  }
}

}  // namespace poolgrad::kernels
