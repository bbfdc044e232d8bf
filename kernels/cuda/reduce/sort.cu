// Sorts rows. A block sorts a run of 256 elements by counting, for each element, the ones before it. Sorted runs are
// then merged pairwise; each element finds its place by binary search in the other run. No two elements are equal
// (kernels/functors/order.h), so places are unique.
#include <algorithm>
#include <utility>

#include "kernels/cpu/workspace.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/functors/order.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace cuda;

static_assert(sorted_run == cuda::reduce_threads);

/// The first `kept` places of each row.
struct OrderedRows {
  std::int64_t* data;
  cuda::Axes rows;
  std::int64_t stride, kept;

  POOLGRAD_HD void put(std::int64_t row, std::int64_t rank, std::int64_t place) const {
    if (rank < kept) data[rows.offset(row) + rank * stride] = place;
  }
};

/// Sorts runs into `to`. If `to` is null, a row is one run and goes to `out`.
template <class T>
__global__ void sort_runs(const __grid_constant__ cuda::ReduceInput x, const __grid_constant__ OrderedRows out,
                          const bool descending, const std::int64_t runs, Placed* const to) {
  POOLGRAD_SHARED(Placed, staged, sorted_run);
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  for (std::int64_t item = blockIdx.x; item < x.rows * runs; item += gridDim.x) {
    const std::int64_t row = item / runs, begin = (item - row * runs) * sorted_run, left = x.count - begin;
    const bool real = thread < left;
    Placed own{};
    if (real)
      cuda::with_element<T, false>(x.dtype, [&]<class S>(S) {
        const S* const from = reinterpret_cast<const S*>(x.data) + x.outer.offset(row);
        own = {order_key(cuda::widened<T>(from[(begin + thread) * x.reduced.strides[0]]), descending), begin + thread};
      });
    __syncthreads();  // all threads have read the last run
    if (real) staged[thread] = own;
    __syncthreads();
    if (!real) continue;
    std::int64_t rank = 0;
    for (std::int64_t i = 0; i < sorted_run && i < left; ++i) {
      const Placed other = staged[i];
      rank += other < own;
    }
    if (to)
      to[row * x.count + begin + rank] = own;
    else
      out.put(row, rank, own.place);
  }
}

/// Merges pairs of runs of `width` elements. The last merge writes places instead.
__global__ void merge_runs_of_rows(const Placed* const from, Placed* const to, const std::int64_t columns,
                                   const std::int64_t count, const std::int64_t width,
                                   const __grid_constant__ OrderedRows out) {
  for (std::int64_t i = cuda::grid_thread(); i < count; i += cuda::grid_threads()) {
    const std::int64_t row = i / columns, at = i - row * columns, run = at / width, other = (run ^ 1) * width;
    const Placed* const elements = from + row * columns;
    const Placed own = elements[at];
    std::int64_t low = other < columns ? other : columns, high = other + width < columns ? other + width : columns;
    const std::int64_t begin = low;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (elements[middle] < own)
        low = middle + 1;
      else
        high = middle;
    }
    const std::int64_t rank = run / 2 * 2 * width + (at - run * width) + (low - begin);
    if (2 * width < columns)
      to[row * columns + rank] = own;
    else
      out.put(row, rank, own.place);
  }
}

}  // namespace

void on_cuda::argsort(Stream stream, const View& out, const View& x, bool descending) {
  for (const View* operand : {&out, &x}) cuda::check_operand("argsort", stream, operand->data);
  const int last = x.rank - 1;
  const std::int64_t columns = x.shape[last], count = x.count(), runs = (columns + sorted_run - 1) / sorted_run;
  const Workspace<std::byte> scratch(stream, "argsort", argsort_scratch(columns, count));
  Placed* from = runs > 1 ? reinterpret_cast<Placed*>(scratch.data()) : nullptr;
  Placed* to = from + (runs > 1 ? count : 0);
  const OrderedRows places{out.as<std::int64_t>(), {out, 0, last}, out.strides[last], out.shape[last]};
  with_compute_type(x.dtype, [&]<class T>(T) {
    const cuda::ReduceInput in = cuda::reduce_input<T>(cuda::plan_rows(out, x, 1));
    cuda::launch("argsort", &sort_runs<T>, cuda::reduce_shape(in.rows * runs, 1), stream, in, places, descending, runs,
                 from);
  });
  for (std::int64_t width = sorted_run; width < columns; width *= 2) {
    cuda::launch("argsort", &merge_runs_of_rows, grid_stride_shape(count), stream, from, to, columns, count, width,
                 places);
    std::swap(from, to);
  }
}

}  // namespace poolgrad::kernels
