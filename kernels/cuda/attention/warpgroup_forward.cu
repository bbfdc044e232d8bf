#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/mma_forward.cuh"

namespace poolgrad::kernels::cuda {

void attend_by_warpgroups(Stream stream, const ForwardCall<float>& call, DType dtype) {
  const auto run = [&]<class S>(S) { launch_by_fragments<S, By::warpgroup>(stream, call); };
  dtype == DType::f16 ? run(Half{}) : run(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
