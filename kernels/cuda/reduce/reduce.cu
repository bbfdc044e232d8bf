#include "kernels/cpu/workspace.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class Reduction, class T>
void reduce_as_planned(const char* op, Stream stream, const ReductionPlan& plan, T divisor) {
  const Workspace<T> partial(stream, "reduce", plan.workspace_size());
  const cuda::ReduceInput x = cuda::reduce_input<T>(plan);
  const cuda::ReduceOutput<T> out(plan.out, divisor);
  const std::int64_t parts = plan.columns() ? RowChunks(plan.reduced).count : plan.segments();
  const auto pass = [&](const cuda::ReduceInput& from, const cuda::ReduceOutput<T>& to, std::int64_t cut) {
    if (!plan.columns()) return cuda::launch_rows<Reduction, T>(op, stream, from, to, cut);
    RowChunks rows(from.count);
    if (cut == 1) rows.size = from.count, rows.count = 1;
    cuda::launch_columns<Reduction, T>(op, stream, from, to, rows);
  };
  if (parts == 1) return pass(x, out, 1);
  pass(x, {cuda::partial_output(partial.data(), plan.workspace_size()), T(1)}, parts);
  pass(cuda::partial_input(partial.data(), plan.outer, parts, plan.inner, plan.inner), out, 1);
}

}  // namespace

void on_cuda::reduce(Stream stream, ReduceOp op, const View& out, const View& x) {
  for (const View* operand : {&out, &x})
    if (operand->count() > 0) cuda::check_operand(to_string(op), stream, operand->data);
  const ReductionPlan plan = plan_reduction(out, x);
  with_compute_type(x.dtype, [&]<class T>(T) {
    // The mean of zero elements is NaN for floating types; integers divide by 1.
    const T size = static_cast<T>(std::is_integral_v<T> && plan.reduced == 0 ? 1 : plan.reduced);
    with_functor(op, [&]<class Op>(Op) {
      reduce_as_planned<cuda::Reduced<Op, T>, T>(to_string(op).data(), stream, plan,
                                                 op == ReduceOp::mean ? size : T(1));
    });
  });
}

}  // namespace poolgrad::kernels
