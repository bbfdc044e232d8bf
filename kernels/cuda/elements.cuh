// The loop of all elementwise GPU kernels, for operands of any layout and all dtypes with one compute type. The
// counterpart of kernels/cpu/block_loop.h.
//
// There is one kernel per operation and compute type T (float, double, int64_t), not per dtype. Threads branch on the
// dtype; all threads of a launch take the same branch. Elements that are adjacent in all operands are loaded and stored
// in packs of up to 16 bytes. Packs may also lie within rows, and an input may have one element per row. Other layouts
// go element by element, with 32-bit index arithmetic if all indices and offsets fit, else 64-bit.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "kernels/cpu/strided.h"
#include "kernels/cuda/launcher.cuh"
#include "kernels/view.h"

namespace poolgrad::kernels::cuda {

/// Operands that share a shape, with their dimensions sorted and merged.
template <std::size_t Operands>
struct Elements {
  std::int64_t count = 0;
  std::int64_t packs = 0;  // number of aligned packs of pack<T> elements, contiguous in all operands
  bool in_pairs = false;   // two packs have at most 16 bytes in every operand, aligned for one access
  bool in_rows = false;    // packs lie within rows, or repeat one element (take_packs_of_rows)
  unsigned repeated = 0;   // bit per operand that has one element for all of a pack
  bool narrow = true;      // indices and offsets fit in 32 bits
  int rank = 0;
  std::int64_t shape[max_rank] = {};
  std::int64_t strides[Operands][max_rank] = {};
  std::byte* data[Operands] = {};
  DType dtype[Operands] = {};
};

/// Elements per pack: 16 bytes of T.
template <class T>
inline constexpr int pack = static_cast<int>(16 / sizeof(T));

/// Packs that a thread of map_elements() processes at once. f32 has two; if all operands are f16, bf16 or boolean, two
/// packs are one access of up to 16 bytes.
template <class T>
inline constexpr int packs_at_once = std::is_same_v<T, float> ? 2 : 1;

/// N elements in one access, or in several of 16 bytes.
template <class S, std::size_t N>
struct alignas(sizeof(S) * N <= 16 ? sizeof(S) * N : 16) Pack {
  S value[N];
};

/// Loads and stores of several elements; the address must be aligned. All wider accesses to global memory use these two
/// functions.
template <class Whole>
POOLGRAD_HD Whole load_whole(const void* from) {
  check_aligned<Whole>("loads", from);
  return *static_cast<const Whole*>(from);
}
template <class Whole>
POOLGRAD_HD void store_whole(void* to, const Whole& value) {
  check_aligned<Whole>("stores", to);
  *static_cast<Whole*>(to) = value;
}

template <class T, class S>
POOLGRAD_HD T widened(S x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<S, Half>) {  // one instruction instead of the dozen of Half's own conversion
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return static_cast<T>(value);
  }
#endif
  if constexpr (sizeof(S) == 2 && !std::is_integral_v<S>)
    return static_cast<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
using poolgrad::narrowed;

/// Calls f(S{}) with the floating type of a dtype whose compute type is T.
template <class T, class F>
POOLGRAD_HD void with_stored(DType dtype, const F& f) {
  if constexpr (std::is_same_v<T, double>)
    f(double{});
  else if (dtype == DType::f32)
    f(float{});
  else if (dtype == DType::bf16)
    f(BFloat16{});
  else
    f(Half{});
}

/// Calls f(S{}) with the element type of a dtype: one with compute type T, boolean, or, with `Any`, any dtype. An
/// unsigned T is a word of raw bits.
template <class T, bool Any, class F>
POOLGRAD_HD void with_element(DType dtype, const F& f) {
  if constexpr (std::is_unsigned_v<T>) {
    f(T{});
  } else {
    if (dtype == DType::boolean) return f(bool{});
    if constexpr (Any || std::is_same_v<T, std::int64_t>) {
      if (dtype == DType::i64) return f(std::int64_t{});
      if (dtype == DType::i32) return f(std::int32_t{});
      if (dtype == DType::u8) return f(std::uint8_t{});
    }
    if constexpr (Any || std::is_same_v<T, float>) {
      if (dtype == DType::f32) return f(float{});
      if (dtype == DType::bf16) return f(BFloat16{});
      if (dtype == DType::f16) return f(Half{});
    }
    if constexpr (Any || std::is_same_v<T, double>) {
      if (dtype == DType::f64) return f(double{});
    }
  }
}

/// Computes the offset of element i in every operand.
template <class Index, std::size_t Operands>
POOLGRAD_HD void offsets_of(const Elements<Operands>& all, std::int64_t i, std::int64_t* offsets) {
  Index rest = static_cast<Index>(i);
  Index sums[Operands] = {};
  for (int d = all.rank - 1; d > 0; --d) {
    const auto size = static_cast<Index>(all.shape[d]);
    const Index above = rest / size, index = rest - above * size;
    for (std::size_t k = 0; k < Operands; ++k) sums[k] += index * static_cast<Index>(all.strides[k][d]);
    rest = above;
  }
  for (std::size_t k = 0; k < Operands; ++k)
    offsets[k] = static_cast<std::int64_t>(static_cast<Index>(sums[k] + rest * static_cast<Index>(all.strides[k][0])));
}

/// The same with 32-bit or 64-bit arithmetic, as `narrow` requires.
template <std::size_t Operands>
POOLGRAD_HD void offsets_at(const Elements<Operands>& all, std::int64_t i, std::int64_t (&offsets)[Operands]) {
  if (all.narrow)
    offsets_of<std::int32_t>(all, i, offsets);
  else
    offsets_of<std::int64_t>(all, i, offsets);
}
/// Returns number i of an i64 operand of indices.
POOLGRAD_HD inline std::int64_t index_at(const Elements<1>& index, std::int64_t i) {
  std::int64_t offset[1];
  offsets_at(index, i, offset);
  return reinterpret_cast<const std::int64_t*>(index.data[0])[offset[0]];
}

/// Returns the index of pack `part` of a thread's packs. Pairs are adjacent; other packs are half of all packs apart.
/// Neighboring threads access neighboring memory either way.
template <class T, std::size_t Operands>
POOLGRAD_HD std::int64_t pack_of(const Elements<Operands>& all, std::int64_t p, int part) {
  if constexpr (packs_at_once<T> == 1)
    return p;
  else
    return all.in_pairs ? p * packs_at_once<T> + part : p + part * (all.packs / packs_at_once<T>);
}

/// First element of each of a thread's packs, in every operand.
template <class T, std::size_t Operands>
struct PackPlaces {
  std::int64_t at[packs_at_once<T>][Operands];

  POOLGRAD_HD PackPlaces(const Elements<Operands>& all, std::int64_t p) {
    POOLGRAD_UNROLL
    for (int part = 0; part < packs_at_once<T>; ++part) {
      const std::int64_t first = pack_of<T>(all, p, part) * pack<T>;
      if (all.in_rows) {
        offsets_of<std::int32_t>(all, first, at[part]);
      } else {
        POOLGRAD_UNROLL
        for (std::size_t k = 0; k < Operands; ++k) at[part][k] = first;
      }
    }
  }
};

template <class T, class S>
using PacksOf = Pack<S, static_cast<std::size_t>(pack<T>* packs_at_once<T>)>;

/// Whether a pair of packs of S is one access.
template <class T, class S>
inline constexpr bool may_be_whole = packs_at_once<T> == 2 && sizeof(PacksOf<T, S>) <= 16;

/// Loads the packs of operand k.
template <class T, class S, std::size_t Operands>
POOLGRAD_HD PacksOf<T, S> load_packs(const Elements<Operands>& all, std::size_t k,
                                     const PackPlaces<T, Operands>& places) {
  using One = Pack<S, static_cast<std::size_t>(pack<T>)>;
  const S* const data = reinterpret_cast<const S*>(all.data[k]);
  PacksOf<T, S> loaded;
  if (all.repeated >> k & 1) {
    POOLGRAD_UNROLL
    for (int part = 0; part < packs_at_once<T>; ++part) {
      const S element = data[places.at[part][k]];
      POOLGRAD_UNROLL
      for (int e = 0; e < pack<T>; ++e) loaded.value[part * pack<T> + e] = element;
    }
    return loaded;
  }
  if constexpr (may_be_whole<T, S>)
    if (all.in_pairs) return load_whole<PacksOf<T, S>>(data + places.at[0][k]);
  POOLGRAD_UNROLL
  for (int part = 0; part < packs_at_once<T>; ++part) {
    const auto one = load_whole<One>(data + places.at[part][k]);
    POOLGRAD_UNROLL
    for (int e = 0; e < pack<T>; ++e) loaded.value[part * pack<T> + e] = one.value[e];
  }
  return loaded;
}

template <class T, class S, std::size_t Operands>
POOLGRAD_HD void store_packs(const Elements<Operands>& all, std::size_t k, const PackPlaces<T, Operands>& places,
                             const PacksOf<T, S>& stored) {
  using One = Pack<S, static_cast<std::size_t>(pack<T>)>;
  S* const data = reinterpret_cast<S*>(all.data[k]);
  if constexpr (may_be_whole<T, S>)
    if (all.in_pairs) return store_whole(data + places.at[0][k], stored);
  POOLGRAD_UNROLL
  for (int part = 0; part < packs_at_once<T>; ++part) {
    One one;
    POOLGRAD_UNROLL
    for (int e = 0; e < pack<T>; ++e) one.value[e] = stored.value[part * pack<T> + e];
    store_whole(data + places.at[part][k], one);
  }
}

/// Calls body(i, in, out) for every element i: in[k] is input k as a T, and body sets out[k]. Operands list outputs
/// before inputs. An output may alias an input element for element. `AnyOutput`: outputs of any dtype.
template <class T, std::size_t Outputs, std::size_t Inputs, bool AnyOutput, class Body>
__global__ void map_elements(const __grid_constant__ Elements<Outputs + Inputs> all,
                             const __grid_constant__ Body body) {
  const std::int64_t first = grid_thread(), threads = grid_threads(), rounds = all.packs / packs_at_once<T>;
  for (std::int64_t p = first; p < rounds; p += threads) {
    constexpr int n = pack<T> * packs_at_once<T>;
    const PackPlaces<T, Outputs + Inputs> places(all, p);
    T in[std::size_t{n}][Inputs + 1] = {}, out[std::size_t{n}][Outputs];
    POOLGRAD_UNROLL
    for (std::size_t k = 0; k != Inputs; ++k)
      with_element<T, false>(all.dtype[Outputs + k], [&]<class S>(S) {
        const auto loaded = load_packs<T, S>(all, Outputs + k, places);
        POOLGRAD_UNROLL
        for (int e = 0; e < n; ++e) in[e][k] = widened<T>(loaded.value[e]);
      });
    POOLGRAD_UNROLL
    for (int e = 0; e < n; ++e) body(pack_of<T>(all, p, e / pack<T>) * pack<T> + e % pack<T>, in[e], out[e]);
    POOLGRAD_UNROLL
    for (std::size_t k = 0; k != Outputs; ++k)
      with_element<T, AnyOutput>(all.dtype[k], [&]<class S>(S) {
        PacksOf<T, S> stored;
        POOLGRAD_UNROLL
        for (int e = 0; e < n; ++e) stored.value[e] = narrowed<S>(out[e][k]);
        store_packs<T, S>(all, k, places, stored);
      });
  }
  for (std::int64_t i = rounds * packs_at_once<T> * pack<T> + first; i < all.count; i += threads) {
    T in[Inputs + 1] = {}, out[Outputs];
    std::int64_t offset[Outputs + Inputs];
    offsets_at(all, i, offset);
    POOLGRAD_UNROLL
    for (std::size_t k = 0; k != Inputs; ++k)
      with_element<T, false>(all.dtype[Outputs + k], [&]<class S>(S) {
        in[k] = widened<T>(reinterpret_cast<const S*>(all.data[Outputs + k])[offset[Outputs + k]]);
      });
    body(i, in, out);
    POOLGRAD_UNROLL
    for (std::size_t k = 0; k != Outputs; ++k)
      with_element<T, AnyOutput>(
          all.dtype[k], [&]<class S>(S) { reinterpret_cast<S*>(all.data[k])[offset[k]] = narrowed<S>(out[k]); });
  }
}

/// Describes the operands of a launch, which share a shape and the compute type T. Elements are numbered in memory
/// order, or in row-major order on request.
template <class T, std::size_t Operands>
Elements<Operands> elements_of(std::array<View, Operands> views, bool row_major = false) {
  Elements<Operands> all;
  all.count = views[0].count();
  if (all.count == 0) return all;
  if (!row_major) sort_dimensions(views);
  merge_dimensions(views);
  all.rank = views[0].rank;
  bool dense = all.rank <= 1;
  all.in_pairs = packs_at_once<T> == 2;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  all.narrow = all.count <= most;
  for (std::size_t k = 0; k < Operands; ++k) {
    const View& view = views[k];
    all.data[k] = view.as<std::byte>();
    all.dtype[k] = view.dtype;
    std::int64_t reach = 0;
    for (int d = 0; d < all.rank; ++d) {
      all.shape[d] = view.shape[d];
      all.strides[k][d] = view.strides[d];
      reach += (view.shape[d] - 1) * std::abs(view.strides[d]);
    }
    all.narrow &= reach <= most;
    const std::size_t bytes = size_of(view.dtype) * static_cast<std::size_t>(pack<T>);
    const auto address = reinterpret_cast<std::uintptr_t>(view.data);
    dense &= (all.rank == 0 || view.strides[0] == 1) && address % std::min<std::size_t>(16, bytes) == 0;
    all.in_pairs &= 2 * bytes <= 16 && address % (2 * bytes) == 0;
  }
  all.packs = dense ? all.count / pack<T> : 0;
  return all;
}

/// Finds packs along the last dimension if elements_of() found none. Rows may lie anywhere. Operands must be dense
/// there; inputs may instead repeat one element per row. Repeated operands then load single elements, and pack offsets
/// need 32-bit index arithmetic.
template <class T, std::size_t Outputs, std::size_t Operands>
void take_packs_of_rows(Elements<Operands>& all) {
  const int last = all.rank - 1;
  if (all.packs > 0 || last < 0 || !all.narrow) return;
  const std::int64_t columns = all.shape[last];
  bool fit = last == 0 || columns % pack<T> == 0;
  bool in_pairs = packs_at_once<T> == 2 && (last == 0 || columns % (2 * pack<T>) == 0);
  unsigned repeated = 0;
  for (std::size_t k = 0; k < Operands; ++k) {
    const std::int64_t(&strides)[max_rank] = all.strides[k];
    if (k >= Outputs && strides[last] == 0) {
      repeated |= 1u << k;
      continue;
    }
    const std::size_t size = size_of(all.dtype[k]), bytes = size * static_cast<std::size_t>(pack<T>);
    std::size_t places = reinterpret_cast<std::uintptr_t>(all.data[k]);  // OR of address and strides, for alignment
    for (int d = 0; d < last; ++d) places |= static_cast<std::size_t>(std::abs(strides[d])) * size;
    fit &= strides[last] == 1 && places % std::min<std::size_t>(16, bytes) == 0;
    in_pairs &= 2 * bytes <= 16 && places % (2 * bytes) == 0;
  }
  if (!fit) return;
  all.packs = all.count / pack<T>;
  all.in_rows = true;
  all.in_pairs = in_pairs;
  all.repeated = repeated;
}

/// Queues body for all elements of the operands, which share a shape. Launches nothing for zero elements.
template <class T, bool AnyOutput = false, std::size_t Outputs, std::size_t Inputs, class Body>
void for_each_element(std::string_view op, Stream stream, const std::array<View, Outputs>& outputs,
                      const std::array<View, Inputs>& inputs, const Body& body) {
  std::array<View, Outputs + Inputs> views;
  std::copy(outputs.begin(), outputs.end(), views.begin());
  std::copy(inputs.begin(), inputs.end(), views.begin() + static_cast<std::ptrdiff_t>(Outputs));
  auto all = elements_of<T>(views);
  if (all.count == 0) return;
  take_packs_of_rows<T, Outputs>(all);
  for (const View& view : views) check_operand(op, stream, view.data);
  const std::int64_t rounds = all.packs / packs_at_once<T>;
  launch(op.data(), &map_elements<T, Outputs, Inputs, AnyOutput, MapBody<T, Body>>,
         grid_stride_shape(std::max(rounds, all.count - rounds * packs_at_once<T> * pack<T>)), stream, all,
         MapBody<T, Body>(body));
}

}  // namespace poolgrad::kernels::cuda
