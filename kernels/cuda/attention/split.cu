#include "kernels/cuda/attention/split.h"

#include "kernels/cuda/attention/split_tile.cuh"
#include "kernels/elementwise.h"

namespace poolgrad::kernels::cuda {
namespace {

struct SplitCall {
  Operand from;
  std::uint16_t* to;
  std::int64_t heads, rows, chunks, count;  // chunks: per row; count: in total
};

__global__ __launch_bounds__(256) void split_rows(const __grid_constant__ SplitCall call) {
  using Four = Pack<float, 4>;
  for (std::int64_t n = grid_thread(); n < call.count; n += grid_threads()) {
    const std::int64_t chunk = n % call.chunks, number = n / call.chunks, row = number % call.rows,
                       head = number / call.rows % call.heads, batch = number / call.rows / call.heads;
    const float* from = reinterpret_cast<const float*>(call.from.data) + offset_of(call.from, batch, head, row) +
                        chunk * elements_of_chunk;
    const Four halves[2] = {load_whole<Four>(from), load_whole<Four>(from + 4)};
    Chunk parts[split_planes];
    POOLGRAD_UNROLL
    for (int word = 0; word < 4; ++word) {
      const Four& half = halves[word / 2];
      const SplitPair pair = split(half.value[word % 2 * 2], half.value[word % 2 * 2 + 1]);
      POOLGRAD_UNROLL
      for (int p = 0; p < split_planes; ++p) parts[p].word[word] = pair.plane[p];
    }
    POOLGRAD_UNROLL
    for (int p = 0; p < split_planes; ++p)
      store_whole(call.to + ((number * split_planes + p) * call.chunks + chunk) * elements_of_chunk, parts[p]);
  }
}

}  // namespace

Operand SplitSpace::put_one(const Operand& x, std::int64_t begin, std::int64_t batch, std::int64_t heads,
                            std::int64_t rows) {
  Operand result;
  if (!x.data) return result;
  result.data = reinterpret_cast<std::byte*>(memory_.data() + begin);
  result.dtype = DType::bf16;
  result.depth = x.depth;
  result.row = split_planes * x.depth;
  result.head = rows * result.row;
  result.batch = heads * result.head;
  const std::int64_t chunks = x.depth / elements_of_chunk, count = batch * heads * rows * chunks;
  if (count > 0)
    launch("attention", &split_rows, grid_stride_shape(count), stream_,
           {x, memory_.data() + begin, heads, rows, chunks, count});
  return result;
}

SplitSpace::Both SplitSpace::put(const Operand& first, const Operand& second, std::int64_t batch, std::int64_t heads,
                                 std::int64_t rows) {
  return {put_one(first, 0, batch, heads, rows),
          put_one(second, batch * heads * rows * split_planes * first.depth, batch, heads, rows)};
}

}  // namespace poolgrad::kernels::cuda
