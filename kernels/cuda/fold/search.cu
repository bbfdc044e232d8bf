// Folds whose parts are of another type than the elements: the best element's index, sums of squares in f64.
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/cuda/fold/fold.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class T>
struct Best {
  T value;
  std::int64_t index;  // -1: none yet
};

/// The first index of the largest (or smallest) element; the first NaN is better than any number.
template <bool Largest, class T>
struct BestIndex {
  using Part = Best<T>;
  static POOLGRAD_HD Part identity() { return {T{}, -1}; }
  static POOLGRAD_HD Part of(T x, std::int64_t index) { return {x, index}; }
  static POOLGRAD_HD bool better(T x, T best) { return (Largest ? x > best : x < best) || (x != x && best == best); }
  static POOLGRAD_HD Part combine(Part a, Part b) {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    const bool second = better(b.value, a.value) || (!better(a.value, b.value) && b.index < a.index);
    return second ? b : a;
  }
  static POOLGRAD_HD std::int64_t result(Part part, T) { return part.index; }
};

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

/// Rows of x along its last `reduced_rank` dimensions, in the order in which they are.
ReductionPlan plan_rows(const View& out, const View& x, int reduced_rank) {
  ReductionPlan plan;
  plan.x = x;
  plan.out = out;
  plan.outer_rank = x.rank - reduced_rank;
  plan.reduced_rank = reduced_rank;
  for (int d = 0; d < x.rank; ++d) (d < plan.outer_rank ? plan.outer : plan.reduced) *= x.shape[d];
  return plan;
}

template <bool Largest>
void best_index(const char* op, Stream stream, const View& out, const View& x) {
  if (out.count() == 0) return;
  for (const View* operand : {&out, &x}) cuda::check_operand(op, stream, operand->data);
  const ReductionPlan plan = plan_rows(out, x, std::min(x.rank, 1));
  with_compute_type(x.dtype, [&]<class T>(T) {
    cuda::launch_rows<BestIndex<Largest, T>, T>(op, stream, cuda::fold_input<T>(plan),
                                                cuda::FoldOutput<T>(plan.out, T(1)), 1);
  });
}

}  // namespace

void on_cuda::argmax(Stream stream, const View& out, const View& x) { best_index<true>("argmax", stream, out, x); }
void on_cuda::argmin(Stream stream, const View& out, const View& x) { best_index<false>("argmin", stream, out, x); }

void on_cuda::add_sum_of_squares(Stream stream, const View& sum, const View& x) {
  const std::int64_t n = x.count(), segments = segments_of(n);
  const Workspace<double> partial(stream, "add_sum_of_squares", segments);
  if (n == 0) return;
  for (const View* operand : {&sum, &x}) cuda::check_operand("add_sum_of_squares", stream, operand->data);
  View sorted = x;
  sort_dimensions({&sorted, 1});
  merge_dimensions({&sorted, 1});
  const ReductionPlan plan = plan_rows(sum, sorted, sorted.rank);
  with_floating_compute_type(x.dtype, [&]<class T>(T) {
    cuda::launch_rows<SquareSum<T>, T>("add_sum_of_squares", stream, cuda::fold_input<T>(plan),
                                       {cuda::partial_output(partial.data(), segments), T(1)}, segments);
  });
  cuda::launch_rows<DoubleSum, double>("add_sum_of_squares", stream,
                                       cuda::partial_input(partial.data(), 1, segments, 1, 1), {sum, 1.0, true}, 1);
}

}  // namespace poolgrad::kernels
