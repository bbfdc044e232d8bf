#include <algorithm>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_gradients.cuh"

namespace poolgrad::kernels::cuda {
namespace {

template <class S>
void launch_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls) {
  GradientCall<float> first = calls.front();
  if (calls.size() == 2 && std::max(first.own.depth, first.own_out.depth) <= most_of_both) {
    first.result_out = calls.back().result;
    return launch_gradient<S, By::warpgroup, Of::both>(stream, first, first.visited, first.visited_out);
  }
  for (const GradientCall<float>& call : calls) {
    if (call.of_weights)
      launch_gradient<S, By::warpgroup, Of::weights>(stream, call, call.visited, call.visited_out);
    else
      launch_gradient<S, By::warpgroup, Of::scores>(stream, call, call.visited, call.visited_out);
  }
}

}  // namespace

void sum_gradients_by_warpgroups(Stream stream, const std::vector<GradientCall<float>>& calls, DType dtype) {
  const auto run = [&]<class S>(S) { launch_by_warpgroups<S>(stream, calls); };
  dtype == DType::f16 ? run(Half{}) : run(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
