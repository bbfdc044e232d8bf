#include <array>
#include <cstring>

#include "allocator/error.h"
#include "kernels/cpu/block_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/functors/elementwise.h"
#include "kernels/functors/indexing.h"
#include "kernels/view.h"

namespace poolgrad::kernels {
namespace {

constexpr std::int64_t range_size = 16384;  // elements

/// x with the shape of `like` and stride 0 along `dim`: the base for index arithmetic.
View flattened(View x, int dim, const View& like) {
  std::copy_n(like.shape, like.rank, x.shape);
  x.strides[dim] = 0;
  return x;
}

/// For all i in row-major order of `index`: copies the slice of `x` at index[i] * stride to the slice of `out` at
/// lead_out.offset(i).
void select_slices(const View& out_slice, const View& lead_out, const View& x_slice, std::int64_t stride,
                   std::int64_t limit, const View& index) {
  std::array slices{out_slice, x_slice};
  const std::int64_t size = out_slice.count(), n = index.count();
  if (size == 0 || n == 0) return;
  sort_dimensions(slices);
  merge_dimensions(slices);
  const bool dense = slices[0].contiguous() && slices[1].contiguous();
  with_word(x_slice.dtype, [&]<class Word>(Word) {
    parallel_ranges(n, std::max<std::int64_t>(1, range_size / size), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Word* to = out_slice.as<Word>() + lead_out.offset(i);
        const Word* from =
            x_slice.as<const Word>() + wrapped(index.as<const std::int64_t>()[index.offset(i)], limit) * stride;
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

void on_cpu::check_indices(Stream, const char* op, const char* what, const View& index, std::int64_t limit,
                           std::int64_t lowest) {
  const Source<std::int64_t> source(index);
  const std::int64_t n = index.count();
  std::int64_t buffer[block_size];
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    const std::int64_t* block = source.read(begin, count, buffer);
    for (std::int64_t i = 0; i < count; ++i) {
      if (block[i] >= lowest && block[i] < limit) continue;
      IndexFault fault(op, what, index, limit, lowest);
      fault.value = block[i];
      fault.position = begin + i;
      throw IndexError(fault.describe());
    }
  }
}

void on_cpu::gather(Stream, const View& out, const View& x, int dim, const View& index) {
  const std::array views{out, flattened(x, dim, index), index};
  const std::int64_t stride = x.strides[dim], limit = x.shape[dim];
  with_word(x.dtype, [&]<class Word>(Word) {
    parallel_ranges(out.count(), range_size, [&](std::int64_t begin, std::int64_t end) {
      for_each_run(views, begin, end - begin, [&](const auto& offset, const auto& strides, std::int64_t length) {
        Word* to = out.as<Word>() + offset[0];
        const Word* from = x.as<const Word>() + offset[1];
        const auto* at = index.as<const std::int64_t>() + offset[2];
        for (std::int64_t k = 0; k < length; ++k)
          to[k * strides[0]] = from[k * strides[1] + wrapped(at[k * strides[2]], limit) * stride];
      });
    });
  });
}

void on_cpu::index_select(Stream, const View& out, const View& x, int dim, const View& index) {
  View lead = index;
  lead.strides[0] = out.strides[dim];
  select_slices(without(out, dim), lead, without(x, dim), x.strides[dim], x.shape[dim], index);
}

void on_cpu::embedding(Stream, const View& out, const View& table, const View& index) {
  View lead = out;
  lead.rank = index.rank;
  select_slices(last_dimension(out), lead, without(table, 0), table.strides[0], table.shape[0], index);
}

namespace {

/// Positions sorted by index, stably. Index v has the positions order[first[v]] ... order[first[v + 1] - 1].
struct ByIndex {
  const std::int64_t *first, *order;
};

ByIndex sort_by_index(const View& index, std::int64_t limit, std::int64_t skip, std::byte* workspace) {
  const Source<std::int64_t> source(index);
  std::int64_t *first = reinterpret_cast<std::int64_t*>(workspace), *order = first + limit + 1;
  std::int64_t buffer[block_size];
  const std::int64_t n = index.count();
  const auto each = [&](const auto& body) {
    for (std::int64_t begin = 0; begin < n; begin += block_size) {
      const std::int64_t count = std::min(block_size, n - begin);
      const std::int64_t* block = source.read(begin, count, buffer);
      for (std::int64_t i = 0; i < count; ++i)
        if (block[i] != skip || skip == -1) body(wrapped(block[i], limit), begin + i);
    }
  };
  std::fill_n(first, limit + 1, 0);
  each([&](std::int64_t v, std::int64_t) { ++first[v]; });
  std::int64_t sum = 0;
  for (std::int64_t v = 0; v <= limit; ++v) {  // first[v] is the end of v, and later its beginning
    sum += first[v];
    first[v] = sum;
  }
  for (std::int64_t begin = (n - 1) / block_size * block_size; begin >= 0 && n > 0; begin -= block_size) {
    const std::int64_t count = std::min(block_size, n - begin);
    const std::int64_t* block = source.read(begin, count, buffer);
    for (std::int64_t i = count - 1; i >= 0; --i)
      if (block[i] != skip || skip == -1) order[--first[wrapped(block[i], limit)]] = begin + i;
  }
  return {first, order};
}

/// For every position i, in order: adds the slice of `x` at lead.offset(i) to the slice of `out` at index[i] * stride,
/// summed in the compute type.
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

/// Visits index, x and out for a scatter: body(out offset, x offset), in order along `dim`, in parallel over lines.
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
          body(offset[1] + k * strides[1] + wrapped(at[k * strides[0]], limit) * out.strides[dim],
               offset[2] + k * strides[2] + j * x.strides[dim]);
      });
  });
}

}  // namespace

std::int64_t on_cpu::by_index_scratch(std::int64_t limit, const View& index) {
  return (limit + 1 + index.count()) * static_cast<std::int64_t>(sizeof(std::int64_t));
}

void on_cpu::index_add(Stream stream, const View& out, int dim, const View& index, const View& x) {
  const std::int64_t limit = out.shape[dim];
  const Workspace<std::byte> workspace(stream, "index_add", by_index_scratch(limit, index));
  View lead = index;
  lead.strides[0] = x.strides[dim];
  add_slices(without(out, dim), out.strides[dim], limit, without(x, dim), lead,
             sort_by_index(index, limit, -1, workspace.data()));
}

void on_cpu::embedding_backward(Stream stream, const View& dtable, const View& grad, const View& index,
                                std::int64_t padding) {
  const std::int64_t limit = dtable.shape[0];
  const Workspace<std::byte> workspace(stream, "embedding_backward", by_index_scratch(limit, index));
  View lead = grad;
  lead.rank = index.rank;
  add_slices(without(dtable, 0), dtable.strides[0], limit, last_dimension(grad), lead,
             sort_by_index(index, limit, padding, workspace.data()));
}

void on_cpu::scatter(Stream, const View& out, int dim, const View& index, const View& x) {
  with_word(x.dtype, [&]<class Word>(Word) {
    scatter_walk(out, dim, index, x,
                 [to = out.as<Word>(), from = x.as<const Word>()](std::int64_t o, std::int64_t i) { to[o] = from[i]; });
  });
}

void on_cpu::scatter_reduce(Stream, BinaryOp op, const View& out, int dim, const View& index, const View& x) {
  const auto run = [&]<class S, class T>(S, T) {
    with_combination(op, [&]<class F>(F) {
      scatter_walk(out, dim, index, x, [to = out.as<S>(), from = x.as<const S>()](std::int64_t o, std::int64_t i) {
        to[o] = static_cast<S>(F::template on<T>::value(static_cast<T>(to[o]), static_cast<T>(from[i])));
      });
    });
  };
  with_type(out.dtype, [&]<class S>(S) {
    if constexpr (std::is_integral_v<S>)
      run(S{}, std::int64_t{});
    else
      run(S{}, simd::Compute<S>{});
  });
}

}  // namespace poolgrad::kernels
