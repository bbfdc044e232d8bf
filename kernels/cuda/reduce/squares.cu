// Sums of squares of many tensors in f64. One launch covers the segments of all contiguous tensors. Each other tensor
// has its own launch. The last launch adds the segments.
#include <span>
#include <vector>

#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/cuda/tensors.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class T>
struct SquareSum {
  using Part = double;
  static POOLGRAD_HD double identity() { return 0; }
  static POOLGRAD_HD double of(T x, std::int64_t) { return static_cast<double>(x) * static_cast<double>(x); }
  static POOLGRAD_HD double combine(double a, double b) { return a + b; }
  static POOLGRAD_HD double result(double part, T) { return part; }
};
struct DoubleSum : SquareSum<double> {
  static POOLGRAD_HD double of(double x, std::int64_t) { return x; }
};

constexpr const char* op = "add_sums_of_squares";

/// partial[b] is the sum of block b's segment. Threads take `wide` elements in turn.
template <class T>
__global__ void reduce_tensors(const __grid_constant__ cuda::TensorTable<1> table, double* const partial) {
  const auto& tensor = table.of_block(blockIdx.x);
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - tensor.first_block) * segment_size;
  const std::int64_t end = begin + segment_size < tensor.count ? begin + segment_size : tensor.count;
  constexpr int n = cuda::wide<T>;
  double sum = 0;
  cuda::with_stored<T>(tensor.dtype, [&]<class S>(S) {
    const S* const x = reinterpret_cast<const S*>(tensor.data[0]);
    POOLGRAD_ROLLED
    for (std::int64_t i = begin + threadIdx.x * n; i < end; i += cuda::reduce_threads * n) {
      if (tensor.packed && i + n <= end) {
        const auto pack = cuda::load_whole<cuda::Pack<S, std::size_t{n}>>(x + i);
        POOLGRAD_UNROLL
        for (int e = 0; e < n; ++e) sum += SquareSum<T>::of(cuda::widened<T>(pack.value[e]), i + e);
      } else {
        const std::int64_t last = i + n < end ? i + n : end;
        POOLGRAD_ROLLED
        for (std::int64_t at = i; at < last; ++at) sum += SquareSum<T>::of(cuda::widened<T>(x[at]), at);
      }
    }
  });
  sum = cuda::block_reduce<SquareSum<T>, cuda::reduce_threads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// Queues the reductions of tensors with compute type T. Returns the end of their partial sums.
template <class T>
double* reduce_all(Stream stream, std::span<const View> all, double* partial) {
  cuda::TensorTable<1> table;
  const auto launch = [&] {
    if (table.size == 0) return;
    cuda::launch(op, &reduce_tensors<T>, {{table.blocks}, {cuda::reduce_threads}}, stream, table, partial);
    partial += table.blocks;
    table = {};
  };
  std::vector<View> scattered;
  for (const View& x : all) {
    if (compute_dtype(x.dtype) != dtype_of<T>) continue;
    View sorted = x;
    sort_dimensions({&sorted, 1});
    merge_dimensions({&sorted, 1});
    if (!sorted.contiguous()) {
      scattered.push_back(sorted);
      continue;
    }
    table.add(op, stream, {&sorted}, segment_size, cuda::wide<T>);
    if (table.is_full()) launch();
  }
  launch();
  for (const View& x : scattered) {
    if (x.count() == 0) continue;
    cuda::check_operand(op, stream, x.data);
    const std::int64_t segments = segments_of(x.count());
    cuda::launch_rows<SquareSum<T>, T>(op, stream, cuda::reduce_input<T>(cuda::plan_rows({}, x, x.rank)),
                                       {cuda::partial_output(partial, segments), T(1)}, segments);
    partial += segments;
  }
  return partial;
}

}  // namespace

void on_cuda::add_sums_of_squares(Stream stream, const View& sum, std::span<const View> all) {
  const std::int64_t segments = segments_of_all(all);
  const Workspace<double> partial(stream, op, segments);
  if (segments == 0) return;
  cuda::check_operand(op, stream, sum.data);
  reduce_all<double>(stream, all, reduce_all<float>(stream, all, partial.data()));
  cuda::launch_rows<DoubleSum, double>(op, stream, cuda::partial_input(partial.data(), 1, segments, 1, 1),
                                       {sum, 1.0, true}, 1);
}

}  // namespace poolgrad::kernels
