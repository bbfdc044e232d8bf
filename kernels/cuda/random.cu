#include "kernels/functors/random.h"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using cuda::Elements;

/// A thread processes one Philox block after another: as many elements as the block has words for. number(words, in)
/// returns one element; elements are numbered in row-major order.
template <class T, int Words, std::size_t Inputs, class Number>
__global__ __launch_bounds__(256, 4) void map_random(const __grid_constant__ Elements<1 + Inputs> all,
                                                     const __grid_constant__ RandomKey given,
                                                     const __grid_constant__ Number number) {
  const RandomKey key = stream_of_words(key_of_replay(given), Words);
  constexpr int each = 4 / Words;  // elements per block of words
  constexpr std::size_t n = each;
  const auto skip = static_cast<std::int64_t>(key.offset % each);  // elements of the first block that other calls use
  const std::int64_t blocks = (all.count + skip + each - 1) / each;
  std::int64_t taken = 0;
  if constexpr (each == cuda::pack<T> && cuda::packs_at_once < T >> 1) {
    // A pack uses one block of words. All packs of a round are loaded before any is computed.
    constexpr int at_once = cuda::packs_at_once<T>;
    const std::int64_t rounds = skip == 0 ? all.packs / at_once : 0;
    for (std::int64_t p = cuda::grid_thread(); p < rounds; p += cuda::grid_threads()) {
      const cuda::PackPlaces<T, 1 + Inputs> places(all, p);
      T in[n * at_once] = {}, out[n * at_once];
      if constexpr (Inputs == 1)
        cuda::with_element<T, false>(all.dtype[1], [&]<class S>(S) {
          const auto loaded = cuda::load_packs<T, S>(all, 1, places);
          POOLGRAD_UNROLL
          for (std::size_t e = 0; e < n * at_once; ++e) in[e] = cuda::widened<T>(loaded.value[e]);
        });
      POOLGRAD_UNROLL
      for (int part = 0; part < at_once; ++part) {
        const auto block = static_cast<std::uint64_t>(cuda::pack_of<T>(all, p, part));
        const PhiloxWords drawn = philox_block(key.seed, key.use, key.offset / each + block);
        POOLGRAD_UNROLL
        for (int e = 0; e < each; ++e) out[part * each + e] = number(&drawn.word[e * Words], in[part * each + e]);
      }
      cuda::with_element<T, false>(all.dtype[0], [&]<class S>(S) {
        cuda::PacksOf<T, S> stored;
        POOLGRAD_UNROLL
        for (std::size_t e = 0; e < n * at_once; ++e) stored.value[e] = cuda::narrowed<S>(out[e]);
        cuda::store_packs<T, S>(all, 0, places, stored);
      });
    }
    taken = rounds * at_once;
  }
  for (std::int64_t b = taken + cuda::grid_thread(); b < blocks; b += cuda::grid_threads()) {
    const std::int64_t first = b * each - skip;
    const PhiloxWords drawn =
        philox_block(key.seed, key.use, (key.offset + static_cast<std::uint64_t>(first)) * Words / 4);
    if (all.packs > 0 && !all.in_rows && skip == 0 && first + each <= all.count) {
      T in[n] = {}, out[n];
      if constexpr (Inputs == 1)
        cuda::with_element<T, false>(all.dtype[1], [&]<class S>(S) {
          const auto loaded =
              cuda::load_whole<cuda::Pack<S, n>>(reinterpret_cast<const cuda::Pack<S, n>*>(all.data[1]) + b);
          POOLGRAD_UNROLL
          for (std::size_t e = 0; e < n; ++e) in[e] = cuda::widened<T>(loaded.value[e]);
        });
      POOLGRAD_UNROLL
      for (int e = 0; e < each; ++e) out[e] = number(&drawn.word[e * Words], in[e]);
      cuda::with_element<T, false>(all.dtype[0], [&]<class S>(S) {
        cuda::Pack<S, n> stored;
        POOLGRAD_UNROLL
        for (std::size_t e = 0; e < n; ++e) stored.value[e] = cuda::narrowed<S>(out[e]);
        cuda::store_whole(reinterpret_cast<cuda::Pack<S, n>*>(all.data[0]) + b, stored);
      });
      continue;
    }
    POOLGRAD_UNROLL
    for (int e = 0; e < each; ++e) {
      const std::int64_t i = first + e;
      if (i < 0 || i >= all.count) continue;
      std::int64_t offset[1 + Inputs];
      cuda::offsets_at(all, i, offset);
      T in{};
      if constexpr (Inputs == 1)
        cuda::with_element<T, false>(all.dtype[1], [&]<class S>(S) {
          in = cuda::widened<T>(reinterpret_cast<const S*>(all.data[1])[offset[1]]);
        });
      const T out = number(&drawn.word[e * Words], in);
      cuda::with_element<T, false>(
          all.dtype[0], [&]<class S>(S) { reinterpret_cast<S*>(all.data[0])[offset[0]] = cuda::narrowed<S>(out); });
    }
  }
}

template <class T, std::size_t Inputs, class Number>
void launch_random(const char* op, Stream stream, const RandomKey& key, const std::array<View, 1 + Inputs>& views,
                   const Number& number) {
  auto all = cuda::elements_of<T>(views, /*row_major=*/true);
  if (all.count == 0) return;
  if constexpr (4 / Number::words == cuda::pack<T>) cuda::take_packs_of_rows<T, 1>(all);
  for (const View& view : views) cuda::check_operand(op, stream, view.data);
  cuda::launch(op, &map_random<T, Number::words, Inputs, Number>, grid_stride_shape(all.count * Number::words / 4 + 1),
               stream, all, key, number);
}

template <class T>
struct Uniform : UniformNumber {
  POOLGRAD_HD T operator()(const std::uint32_t* drawn, T) const {
    return static_cast<T>(UniformNumber::operator()(unit_interval(drawn[0], drawn[1])));
  }
};
template <class T>
struct Normal : NormalNumber {
  POOLGRAD_HD T operator()(const std::uint32_t* drawn, T) const {
    return static_cast<T>(
        NormalNumber::operator()(unit_interval(drawn[0], drawn[1]), unit_interval(drawn[2], drawn[3])));
  }
};
template <class T>
struct Dropped : DroppedNumber<T> {
  POOLGRAD_HD T operator()(const std::uint32_t* drawn, T x) const { return DroppedNumber<T>::operator()(drawn[0], x); }
};

}  // namespace

void on_cuda::uniform(Stream stream, const RandomKey& key, const View& out, double low, double high) {
  with_floating_compute_type(out.dtype, [&]<class T>(T) {
    launch_random<T, 0>("uniform", stream, key, {out}, Uniform<T>{UniformNumber(low, high, out.dtype)});
  });
}

void on_cuda::normal(Stream stream, const RandomKey& key, const View& out, double mean, double deviation) {
  with_floating_compute_type(out.dtype, [&]<class T>(T) {
    launch_random<T, 0>("normal", stream, key, {out}, Normal<T>{NormalNumber{mean, deviation}});
  });
}

void on_cuda::dropout(Stream stream, const RandomKey& key, const View& out, const View& x, double p) {
  if (p >= 1) return fill(stream, out, 0);
  with_floating_compute_type(x.dtype, [&]<class T>(T) {
    launch_random<T, 1>("dropout", stream, key, {out, x}, Dropped<T>{DroppedNumber<T>(p)});
  });
}

}  // namespace poolgrad::kernels
