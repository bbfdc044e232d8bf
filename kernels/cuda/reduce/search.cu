// Index of the largest or smallest element: a reduction whose part is a value and its index.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class T>
struct Best {
  T value;
  std::int64_t index;  // -1: none yet
};

/// Finds the first index of the largest (or smallest) element; the first NaN precedes all numbers.
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

template <bool Largest>
void best_index(const char* op, Stream stream, const View& out, const View& x) {
  if (out.count() == 0) return;
  for (const View* operand : {&out, &x}) cuda::check_operand(op, stream, operand->data);
  const ReductionPlan plan = cuda::plan_rows(out, x, std::min(x.rank, 1));
  with_compute_type(x.dtype, [&]<class T>(T) {
    cuda::launch_rows<BestIndex<Largest, T>, T>(op, stream, cuda::reduce_input<T>(plan),
                                                cuda::ReduceOutput<T>(plan.out, T(1)), 1);
  });
}

}  // namespace

void on_cuda::argmax(Stream stream, const View& out, const View& x) { best_index<true>("argmax", stream, out, x); }
void on_cuda::argmin(Stream stream, const View& out, const View& x) { best_index<false>("argmin", stream, out, x); }

}  // namespace poolgrad::kernels
