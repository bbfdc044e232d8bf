#include "kernels/indexing.h"

#include <array>
#include <cstring>

#include "kernels/cpu/index_views.h"
#include "kernels/cpu/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/strided_runs.h"
#include "kernels/dispatch.h"

namespace poolgrad::kernels {
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

}  // namespace poolgrad::kernels
