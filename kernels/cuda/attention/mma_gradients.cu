#include "kernels/cuda/attention/mma_gradients.cuh"

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/split.h"

namespace poolgrad::kernels::cuda {
namespace {

template <class S>
void sum(Stream stream, const GradientCall<float>& call, const Operand& visited, const Operand& visited_out) {
  with_staged(
      call, visited, visited_out,
      [&]<int Depth>(const GradientCall<float>& staged, std::integral_constant<int, Depth>, std::int64_t items) {
        launch_by_fragments<S, Depth, By::warps, Of::either>(stream, staged, items);
      });
}

}  // namespace

void sum_gradients_by_mma(Stream stream, const std::vector<GradientCall<float>>& calls, const View& visited,
                          const View& visited_out) {
  if (calls.empty()) return;
  if (visited.dtype == DType::f32) {
    const GradientCall<float>& any = calls.front();
    const auto plan = GpuSplitPlan::make(visited, visited_out, any.items.heads / any.group);
    SplitSpace space(stream, plan);
    plan.for_each_part([&](const CallPart& some) {
      const GradientCall<float> first = any.of(some);
      const auto split = space.put(first.visited, first.visited_out, some.batches,
                                   some.kv_heads * (any.by_keys ? any.group : 1), visited.shape[1]);
      for (const GradientCall<float>& call : calls) sum<float>(stream, call.of(some), split.first, split.second);
    });
    return;
  }
  if (has_warpgroups(stream.device.index)) return sum_gradients_by_warpgroups(stream, calls, visited.dtype);
  const auto run = [&]<class S>(S) {
    for (const GradientCall<float>& call : calls) sum<S>(stream, call, call.visited, call.visited_out);
  };
  visited.dtype == DType::f16 ? run(Half{}) : run(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
