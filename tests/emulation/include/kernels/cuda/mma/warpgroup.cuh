// Host twins of the products of warpgroups, in place of kernels/cuda/mma/warpgroup.cuh. They withhold the sums until
// the wait.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma/mma.cuh"
#include "kernels/cuda/mma/staged.h"
#include "tests/emulation/product.h"

namespace poolgrad::kernels::cuda {

inline constexpr bool compiled_for_warpgroups = true, multiplies_in_warpgroups = true;

inline void fence_for_products() { emulation::fence_for_products(); }
inline void begin_products() { emulation::begin_products(); }
inline void commit_products() { emulation::commit_products(); }
template <int Pending, std::size_t Fragments>
void wait_for_products(FragmentC (&)[Fragments]) {
  emulation::wait_for_products(Pending);
}

inline emulation::DescribedMatrix described(const StagedMatrix& matrix, const Shared<Chunk>& memory, bool by_rows,
                                            Where where) {
  return {memory.array(), matrix.descriptor(0), by_rows, where};
}

template <class S, bool ByRows, std::size_t Fragments>
void multiply_in_warpgroup(FragmentC (&c)[Fragments], const FragmentAB& a, const Shared<Chunk>& memory,
                           const StagedMatrix& b, bool adds_to_c, Where where = Where::current()) {
  const emulation::DescribedMatrix of_b = described(b, memory, ByRows, where);
  constexpr int columns = static_cast<int>(Fragments) * 8;
  of_b.read(0, columns);
  float* const sums = emulation::sums_of_product(&c[0].value[0], Fragments * elements_of_c, adds_to_c, where);
  const emulation::LaneOfWarpgroup own{{a.word[0], a.word[1], a.word[2], a.word[3]}, &of_b, columns, sums};
  emulation::exchange("multiply_in_warpgroup", &own, sizeof(own), where, emulation::multiply_rows_of_warp<S>);
}
template <class S, std::size_t Fragments>
void multiply_in_warpgroup(FragmentC (&c)[Fragments], const StagedMatrix& a, const Shared<Chunk>& memory,
                           const StagedMatrix& b, bool adds_to_c, Where where = Where::current()) {
  const emulation::DescribedMatrix of_a = described(a, memory, false, where);
  const int first = static_cast<int>(threadIdx.x) / emulation::warp_size % 4 * 16;
  of_a.read(first, 16);
  FragmentAB own{};
  for (int i = 0; i < elements_of_a; ++i) {
    const Place place = place_in_a(emulation::lane(), i);
    own.word[i / 2] |= static_cast<std::uint32_t>(of_a.bits(first + place.row, place.column)) << (i % 2 * 16);
  }
  multiply_in_warpgroup<S, false>(c, own, memory, b, adds_to_c, where);
}

}  // namespace poolgrad::kernels::cuda
