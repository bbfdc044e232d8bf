#include <algorithm>
#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using cuda::ReduceInput, cuda::reduce_threads, cuda::threads_per_warp, cuda::wide;

/// Rows of the result.
struct ScannedRows {
  std::byte* data;
  DType dtype;
  cuda::Axes outer;
  std::int64_t stride;
};

/// Running sum of a row of x (rows, count), from its start or its end. `Threads` threads, a warp or a block, process
/// one tile after another; each thread has wide<T> elements of a tile.
template <class T, class Sum, int Threads>
__global__ __launch_bounds__(reduce_threads, 4) void scan_rows(const __grid_constant__ ReduceInput x,
                                                               const __grid_constant__ ScannedRows out,
                                                               const bool reverse) {
  const int rows_of_block = static_cast<int>(blockDim.x) / Threads, thread = static_cast<int>(threadIdx.x) % Threads;
  const int direction = reverse ? -1 : 1;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * rows_of_block; first < x.rows;
       first += static_cast<std::int64_t>(gridDim.x) * rows_of_block) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / Threads;
    Sum sum{};  // of the previous tiles
    for (std::int64_t tile = 0; tile < x.count; tile += Threads * wide<T>) {
      const std::int64_t begin = tile + thread * wide<T>, left = row < x.rows ? x.count - begin : 0;
      const std::int64_t place = reverse ? x.count - 1 - begin : begin;  // of the first element
      T values[wide<T>] = {};
      if (left > 0) {
        const std::int64_t stride = x.reduced.strides[0];
        cuda::read_wide<T>(x, x.outer.offset(row) + place * stride, direction * stride, left, values);
      }
      Sum sums[wide<T>], own{};
      POOLGRAD_UNROLL
      for (int e = 0; e < wide<T>; ++e) sums[e] = own += static_cast<Sum>(values[e]);
      const cuda::Prefix<Sum> others = cuda::block_prefix<Threads>(own);
      const Sum before = sum + others.before;
      if (left > 0)
        cuda::with_element<T, false>(out.dtype, [&]<class S>(S) {
          S* const to = reinterpret_cast<S*>(out.data) + out.outer.offset(row) + place * out.stride;
          POOLGRAD_UNROLL
          for (int e = 0; e < wide<T>; ++e)
            if (e < left) to[e * direction * out.stride] = cuda::narrowed<S>(before + sums[e]);
        });
      sum += others.total;
    }
  }
}

}  // namespace

/// Floating sums run in f64, as on the CPU.
void on_cuda::cumulative_sum(Stream stream, const View& out, const View& x, bool reverse) {
  if (x.count() == 0) return;
  for (const View* operand : {&out, &x}) cuda::check_operand("cumulative_sum", stream, operand->data);
  const int last = x.rank - 1;
  ReductionPlan plan;
  plan.x = x;
  plan.reduced_rank = std::min(x.rank, 1);
  plan.outer_rank = x.rank - plan.reduced_rank;
  plan.reduced = x.rank ? x.shape[last] : 1;
  plan.outer = x.count() / plan.reduced;
  const ScannedRows to{out.as<std::byte>(), out.dtype, {out, 0, plan.outer_rank}, out.rank ? out.strides[last] : 0};
  with_compute_type(x.dtype, [&]<class T>(T) {
    using Sum = std::conditional_t<std::is_integral_v<T>, T, double>;
    ReduceInput in = cuda::reduce_input<T>(plan);
    in.dense &= !reverse;  // in reverse, neighbors come in descending order
    constexpr int of_a_warp = 16 * threads_per_warp * wide<T>;
    if (plan.reduced <= of_a_warp)
      cuda::launch("cumulative_sum", &scan_rows<T, Sum, threads_per_warp>,
                   cuda::reduce_shape(plan.outer, reduce_threads / threads_per_warp), stream, in, to, reverse);
    else
      cuda::launch("cumulative_sum", &scan_rows<T, Sum, reduce_threads>, cuda::reduce_shape(plan.outer, 1), stream, in,
                   to, reverse);
  });
}

}  // namespace poolgrad::kernels
