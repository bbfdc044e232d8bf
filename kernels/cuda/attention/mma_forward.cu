#include "kernels/cuda/attention/mma_forward.cuh"

#include <algorithm>
#include <atomic>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/split.h"
#include "kernels/schedule/device_program.h"

namespace poolgrad::kernels::cuda {

bool mma_fits(int device, std::initializer_list<const View*> operands) {
  constexpr std::int64_t needed = 136 * 1024;
  const bool large = std::any_of(operands.begin(), operands.end(),
                                 [](const View* x) { return x->data && x->dtype == DType::f32 && x->shape[3] > 64; });
  return !large || shared_bytes_of_block(device) >= needed;
}

namespace {
template <class S>
void launch_by_fragments(Stream stream, const ForwardCall<float>& call) {
  launch_forward(
      stream, call, []<int Depth>(std::integral_constant<int, Depth>) { return &attend_by_fragments<S, Depth>; },
      []<int Depth>(std::integral_constant<int, Depth>) {
        return (2 * forward_buffers<S> + (splits<S> ? 0 : 1)) * TileOf<S, Depth, By::warps>::count;
      });
}

std::atomic<bool>& warpgroups() {
  static std::atomic<bool> allowed{switched_on("POOLGRAD_WGMMA", true)};
  return allowed;
}
}  // namespace
void allow_warpgroups(bool allowed) { warpgroups() = allowed; }
bool warpgroups_allowed() { return warpgroups(); }
bool has_warpgroups(int device) {
  return compiled_for_warpgroups && warpgroups_allowed() && capability_of(device) == 9;
}

void attend_by_mma(Stream stream, const AttentionProgram& program, const AttentionScores& scores, const View& q,
                   const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
                   const View& carry_lse) {
  const auto call = ForwardCall<float>::make(program, scores, {}, q, k, v, out, lse, carry_out, carry_lse);
  if (q.dtype == DType::f32) {
    const auto plan = GpuSplitPlan::make(k, v, k.shape[2]);
    SplitSpace space(stream, plan);
    plan.for_each_part([&](const CallPart& some) {
      ForwardCall<float> part = call.of(some);
      const auto split = space.put(part.k, part.v, some.batches, some.kv_heads, k.shape[1]);
      part.staged_k = split.first, part.staged_v = split.second;
      launch_by_fragments<float>(stream, part);
    });
    return;
  }
  if (has_warpgroups(stream.device.index)) return attend_by_warpgroups(stream, call, q.dtype);
  const auto run = [&]<class S>(S) { launch_by_fragments<S>(stream, call); };
  q.dtype == DType::f16 ? run(Half{}) : run(BFloat16{});
}

}  // namespace poolgrad::kernels::cuda
