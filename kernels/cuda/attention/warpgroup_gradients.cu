#include <algorithm>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_gradients.cuh"

namespace poolgrad::kernels::cuda {
namespace {

template <class S>
void launch_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls) {
  GradientCall<float> call = calls.front();
  call.staged_first = call.visited_out, call.staged_last = call.visited;
  if (calls.size() == 2 && std::max(call.own.depth, call.own_out.depth) <= most_of_both) {
    call.result_out = calls.back().result;
    return launch_gradient<S, By::warpgroup, Of::both>(stream, call);
  }
  for (GradientCall<float> one : calls) {
    one.staged_first = one.of_weights ? one.visited : one.visited_out;
    one.staged_last = one.of_weights ? one.visited_out : one.visited;
    if (one.of_weights)
      launch_gradient<S, By::warpgroup, Of::weights>(stream, one);
    else
      launch_gradient<S, By::warpgroup, Of::scores>(stream, one);
  }
}

}  // namespace

void sum_gradients_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls, DType dtype) {
  const auto run = [&]<class S>(S) { launch_by_warpgroups<S>(stream, calls); };
  dtype == DType::f16 ? run(Half{}) : run(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
