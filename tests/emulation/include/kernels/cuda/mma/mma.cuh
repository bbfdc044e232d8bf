// Host twins of the tensor-core instructions, in place of kernels/cuda/mma/mma.cuh: the lanes of an emulated warp
// exchange their elements as fragments.h describes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/mma/fragments.h"
#include "kernels/dtype.h"
#include "tests/emulation/product.h"

namespace poolgrad::kernels::cuda {

inline int thread_of_block() { return static_cast<int>(threadIdx.x); }

template <class S>
void mma_m16n8k16(FragmentC& c, const FragmentAB& a, std::uint32_t b0, std::uint32_t b1,
                  Where where = Where::current()) {
  emulation::LaneProduct own{{}, {b0, b1}, {}};
  std::copy_n(a.word, 4, own.a);
  std::copy_n(c.value, elements_of_c, own.c);
  const emulation::Lanes<emulation::LaneProduct> of("mma_m16n8k16", own, where, emulation::multiply_fragments<S>);
  std::copy_n(of[emulation::lane()].c, elements_of_c, c.value);
}

/// Each lane reads the row that it addresses and takes its elements from the rows of other lanes.
template <bool Transposed>
FragmentAB ldmatrix_x4(const Shared<Chunk>& memory, int index, Where where = Where::current()) {
  const Chunk own = memory[Shared<Chunk>::Position(index, where)].read(emulation::ReadFor::others);
  const emulation::Lanes<Chunk> of("ldmatrix_x4", own, where);
  FragmentAB result{};
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int i = 0; i < 2; ++i) {
      const Place place = place_in_matrix(emulation::lane(), i);
      const int row = Transposed ? place.column : place.row, column = Transposed ? place.row : place.column;
      const Chunk& chunk = of[lane_of_matrix_row(matrix, row)];
      result.word[matrix] |= (chunk.word[column / 2] >> (column % 2 * 16) & 0xffffu) << (i * 16);
    }
  return result;
}

inline void cp_async_16(const Shared<Chunk>& memory, int index, const void* from, bool exists,
                        Where where = Where::current()) {
  emulation::copy_async(memory.array(), index, from, exists ? sizeof(Chunk) : 0, where);
}
inline void cp_async_commit() { emulation::commit_copies(); }
template <int Pending>
void cp_async_wait() {
  emulation::wait_for_copies(Pending);
}

inline void settle(float&) {}

inline float exp2_approx(float x) { return std::exp2(x); }

template <class S>
std::uint32_t packed_pair(float first, float second) {
  return static_cast<std::uint32_t>(S(first).bits) | static_cast<std::uint32_t>(S(second).bits) << 16;
}

}  // namespace poolgrad::kernels::cuda
