// Selects the variant of the attention kernels for the CPU, and holds the code shared by all variants.
#include "kernels/cpu/attention/variants.h"

#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/cpu/kernels.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

#if defined(POOLGRAD_AVX512_VARIANT)
#define POOLGRAD_CALL_VARIANT(call) instruction_set_in_use().avx512 ? avx512::call : baseline::call
#else
#define POOLGRAD_CALL_VARIANT(call) baseline::call
#endif

namespace poolgrad::kernels {

void on_cpu::plan_attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                    const View& q, const View& k, const View& v, const View& out, const View& lse,
                                    const View& carry_out, const View& carry_lse, const Instead& instead) {
  const SteadyThreads threads;
  POOLGRAD_CALL_VARIANT(attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse, instead));
}

void on_cpu::plan_attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                     const View& q, const View& k, const View& v, const View& lse, const View& delta,
                                     const View& grad_out, const AttentionGradients& gradients,
                                     const Instead& instead) {
  const SteadyThreads threads;
  POOLGRAD_CALL_VARIANT(
      attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients, instead));
}

void on_cpu::attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                               const View& q, const View& k, const View& v, const View& out, const View& lse,
                               const View& carry_out, const View& carry_lse) {
  plan_attention_forward(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse, {});
}

void on_cpu::attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                const View& q, const View& k, const View& v, const View& lse, const View& delta,
                                const View& grad_out, const AttentionGradients& gradients) {
  plan_attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients, {});
}

std::int64_t attention_forward_scratch(const View& q, const View& k, const View& v) {
  return POOLGRAD_CALL_VARIANT(attention_forward_scratch(q, k, v));
}

std::array<std::int64_t, 3> attention_backward_scratch(const View& q, const View& k, const View& v) {
  return POOLGRAD_CALL_VARIANT(attention_backward_scratch(q, k, v));
}

// delta_i = <dO_i, O_i> - dlse_i: the backward pass needs nothing else of the output.

namespace {

using namespace attention;

/// <a_i, b_i> of rows of possibly different types.
template <class T, class A, class B>
T dot(const A* a, const B* b, std::int64_t count) {
  Vec<T> sum{};
  for (std::int64_t j = 0; j < count; j += lanes<T>)
    sum += simd::load_partial<T>(a + j, count - j) * simd::load_partial<T>(b + j, count - j);
  return simd::sum<T>(sum);
}

template <class A, class B>
void write_delta(const View& out, const View& grad_out, const View& grad_lse, const View& delta) {
  using T = Compute<A>;
  constexpr std::int64_t chunk = 64;
  const std::int64_t heads = delta.shape[1], rows = delta.shape[2];
  parallel_ranges(delta.count(), chunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % rows, head = i / rows % heads, batch = i / rows / heads;
      const View& g = grad_lse;
      T value = g.data ? -g.as<const T>()[batch * g.strides[0] + head * g.strides[1] + row * g.strides[2]] : T{};
      if (grad_out.data)
        value += dot<T>(head_of<const A>(out, batch, head).row(row), head_of<const B>(grad_out, batch, head).row(row),
                        out.shape[3]);
      delta.as<T>()[i] = value;
    }
  });
}

}  // namespace

void on_cpu::attention_delta(Stream, const View& out, const View& grad_out, const View& grad_lse, const View& delta) {
  // out may be in the compute type while grad_out is in the storage type, after several passes.
  with_floating_type(out.dtype, [&]<class A>(A) {
    const DType type = grad_out.data ? grad_out.dtype : dtype_of<Compute<A>>;
    if (type == dtype_of<A>) return write_delta<A, A>(out, grad_out, grad_lse, delta);
    if constexpr (std::is_same_v<A, float>) {
      if (type == DType::f16) return write_delta<A, Half>(out, grad_out, grad_lse, delta);
      return write_delta<A, BFloat16>(out, grad_out, grad_lse, delta);
    } else {
      return write_delta<A, Compute<A>>(out, grad_out, grad_lse, delta);
    }
  });
}

}  // namespace poolgrad::kernels
