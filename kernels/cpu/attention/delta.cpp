// delta_i = <dO_i, O_i> - dlse_i: all that the backward pass needs of the output.
#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/kernels.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace attention;

/// <a_i, b_i> of rows whose types may differ.
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
  // out may be in the compute type while grad_out is in the storage type: several passes leave it so.
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
