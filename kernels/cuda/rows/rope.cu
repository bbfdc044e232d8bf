#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/functors/trigonometry.h"

namespace poolgrad::kernels {
namespace {

using cuda::Compute, cuda::width;

/// Views (B, T, H, D) in the kernel's order. A thread takes a pack of neighboring pairs of one step. It rotates the
/// pack in `vectors_each` of the B * H vectors.
template <class S>
struct Rotations {
  S* out;
  const S* x;
  std::int64_t vectors, steps, heads, half, packs, parts;
  std::int64_t out_strides[3], x_strides[3];
  RotaryPositions positions;
  RotaryFrequencies frequencies;
  double sign;
};
constexpr std::int64_t vectors_each = 8;

/// The elements of a pair are half a vector apart: two packs, each one access if `shape` is packed.
template <class S>
__global__ __launch_bounds__(256, 3) void rotate_pairs(const __grid_constant__ cuda::RowShape shape,
                                                       const __grid_constant__ Rotations<S> all) {
  using T = Compute<S>;
  const std::int64_t items = all.steps * all.parts * all.packs;
  for (std::int64_t i = cuda::grid_thread(); i < items; i += cuda::grid_threads()) {
    const std::int64_t at = i / all.packs, pair = (i - at * all.packs) * width<S>;
    const std::int64_t step = at / all.parts, first = (at - step * all.parts) * vectors_each;
    T cosine[width<S>], sine[width<S>];
    POOLGRAD_UNROLL
    for (int e = 0; e < width<S>; ++e) {
      const double frequency = all.frequencies.of(
          std::pow(all.frequencies.base, -static_cast<double>(pair + e) / static_cast<double>(all.half)), pair + e);
      const SineCosine<double> turn = sine_cosine(all.positions.of(step) * frequency);
      cosine[e] = static_cast<T>(all.frequencies.magnitude * turn.cosine);
      sine[e] = static_cast<T>(all.sign * all.frequencies.magnitude * turn.sine);
    }
    const std::int64_t last = first + vectors_each < all.vectors ? first + vectors_each : all.vectors;
    for (std::int64_t vector = first; vector < last; ++vector) {
      const std::int64_t batch = vector / all.heads, head = vector - batch * all.heads;
      const auto start = [&](const std::int64_t(&strides)[3]) {
        return batch * strides[0] + step * strides[1] + head * strides[2];
      };
      const S* from = all.x + start(all.x_strides);
      S* to = all.out + start(all.out_strides);
      T low[width<S>], high[width<S>], turned[width<S>];
      cuda::load_pack(from, pair, shape, T{}, low);
      cuda::load_pack(from + all.half, pair, shape, T{}, high);
      POOLGRAD_UNROLL
      for (int e = 0; e < width<S>; ++e) turned[e] = low[e] * cosine[e] - high[e] * sine[e];
      cuda::store_pack(to, pair, shape, turned);
      POOLGRAD_UNROLL
      for (int e = 0; e < width<S>; ++e) turned[e] = high[e] * cosine[e] + low[e] * sine[e];
      cuda::store_pack(to + all.half, pair, shape, turned);
    }
  }
}

}  // namespace

void on_cuda::rope(Stream stream, const View& out, const View& x, const RotaryPositions& positions,
                   const RotaryFrequencies& frequencies, bool inverse) {
  if (x.count() == 0) return;
  cuda::check_operands("rope", stream, {out.data, x.data});
  with_floating_type(x.dtype, [&]<class S>(S) {
    constexpr std::int64_t pack = cuda::width<S>;
    const std::int64_t half = x.shape[3] / 2, vectors = x.shape[0] * x.shape[2];
    Rotations<S> all{out.as<S>(),
                     x.as<const S>(),
                     vectors,
                     x.shape[1],
                     x.shape[2],
                     half,
                     (half + pack - 1) / pack,
                     (vectors + vectors_each - 1) / vectors_each,
                     {},
                     {},
                     positions,
                     frequencies,
                     inverse ? -1.0 : 1.0};
    bool packed = cuda::can_pack<S>(half, {out.data, x.data});
    for (int d = 0; d < 3; ++d) {
      all.out_strides[d] = out.strides[d];
      all.x_strides[d] = x.strides[d];
      packed &= out.strides[d] % pack == 0 && x.strides[d] % pack == 0;
    }
    cuda::launch("rope", &rotate_pairs<S>, grid_stride_shape(all.steps * all.parts * all.packs), stream,
                 cuda::RowShape{vectors, half, packed}, all);
  });
}

}  // namespace poolgrad::kernels
