#include "kernels/cpu/strided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd/simd.h"

namespace poolgrad::kernels {
namespace {

void swap_dimensions(View& view, int a, int b) {
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.strides[a], view.strides[b]);
}

std::int64_t magnitude(std::int64_t x) { return x < 0 ? -x : x; }

}  // namespace

void sort_dimensions(std::span<View> views) {
  const View& first = views[0];
  const auto key = [&](int d) {  // dimensions of size 1 go to the front
    return first.shape[d] == 1 ? INT64_MAX : magnitude(first.strides[d]);
  };
  for (int i = 1; i < first.rank; ++i)
    for (int d = i; d > 0 && key(d - 1) < key(d); --d)
      for (View& view : views) swap_dimensions(view, d - 1, d);
}

void merge_dimensions(std::span<View> views) {
  const View shape = views[0];
  int rank = 0;
  for (int d = 0; d < shape.rank; ++d) {
    if (shape.shape[d] == 1) continue;
    const bool merge = rank > 0 && std::all_of(views.begin(), views.end(), [&](const View& view) {
                         return view.strides[rank - 1] == view.strides[d] * shape.shape[d];
                       });
    if (!merge) ++rank;
    for (View& view : views) {
      view.shape[rank - 1] = merge ? view.shape[rank - 1] * shape.shape[d] : shape.shape[d];
      view.strides[rank - 1] = view.strides[d];
    }
  }
  for (View& view : views) view.rank = rank;
}

Strided::Strided(View view) : view_(view), size_(size_of(view.dtype)) {
  merge_dimensions({&view_, 1});
  dense_ = view_.rank == 0 || (view_.rank == 1 && view_.strides[0] == 1);
}

void Strided::read(std::int64_t begin, std::int64_t count, void* out, std::int64_t shift) const {
  with_word(view_.dtype, [&]<class Word>(Word) {
    const Word* in = view_.as<const Word>() + shift;
    Word* to = static_cast<Word*>(out);
    for_each_run(std::array{view_}, begin, count, [&](const auto& offsets, const auto& strides, std::int64_t length) {
      const std::int64_t stride = strides[0];
      const Word* from = in + offsets[0];
      if (stride == 1)
        std::memcpy(to, from, static_cast<std::size_t>(length) * sizeof(Word));
      else if (stride == 0)
        std::fill_n(to, length, *from);
      else
        for (std::int64_t i = 0; i < length; ++i) to[i] = from[i * stride];
      to += length;
    });
  });
}

void Strided::write(std::int64_t begin, std::int64_t count, const void* in, std::int64_t shift) const {
  with_word(view_.dtype, [&]<class Word>(Word) {
    Word* out = view_.as<Word>() + shift;
    const Word* from = static_cast<const Word*>(in);
    for_each_run(std::array{view_}, begin, count, [&](const auto& offsets, const auto& strides, std::int64_t length) {
      const std::int64_t stride = strides[0];
      Word* to = out + offsets[0];
      if (stride == 1)
        std::memcpy(to, from, static_cast<std::size_t>(length) * sizeof(Word));
      else
        for (std::int64_t i = 0; i < length; ++i) to[i * stride] = from[i];
      from += length;
    });
  });
}

namespace {

template <class S, class T>
void widen_from(const void* in, std::int64_t count, T* out) {
  const S* from = static_cast<const S*>(in);
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, float> && sizeof(S) == 2)
    for (; i + simd::lanes<float> <= count; i += simd::lanes<float>) simd::store(out + i, simd::load<float>(from + i));
  for (; i < count; ++i) out[i] = narrowed<T>(from[i]);
}

template <class S, class T>
void narrow_to(const T* in, std::int64_t count, void* out) {
  S* to = static_cast<S*>(out);
  std::int64_t i = 0;
  if constexpr (sizeof(S) == 2) {
    constexpr std::int64_t n = simd::lanes<float>;
    for (; i + n <= count; i += n) {
      if constexpr (std::is_same_v<T, float>) {
        simd::store(to + i, simd::load<float>(in + i));
      } else {
        float odd[static_cast<std::size_t>(n)];
        for (std::int64_t lane = 0; lane < n; ++lane) odd[lane] = rounded_to_odd(in[i + lane]);
        simd::store(to + i, simd::load<float>(odd));
      }
    }
  }
  for (; i < count; ++i) to[i] = narrowed<S>(in[i]);
}

}  // namespace

template <class T>
void widen(DType from, const void* in, std::int64_t count, T* out) {
  with_type(from, [&]<class S>(S) { widen_from<S>(in, count, out); });
}
template <class T>
void narrow(const T* in, std::int64_t count, DType to, void* out) {
  with_type(to, [&]<class S>(S) { narrow_to<S>(in, count, out); });
}

template void widen(DType, const void*, std::int64_t, float*);
template void widen(DType, const void*, std::int64_t, double*);
template void widen(DType, const void*, std::int64_t, std::int64_t*);
template void narrow(const float*, std::int64_t, DType, void*);
template void narrow(const double*, std::int64_t, DType, void*);
template void narrow(const std::int64_t*, std::int64_t, DType, void*);

}  // namespace poolgrad::kernels
