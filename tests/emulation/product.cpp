#include "tests/emulation/product.h"

#include <cstring>
#include <string>

#include "kernels/cuda/mma/fragments.h"
#include "kernels/dtype.h"

namespace poolgrad::emulation {
namespace {

using kernels::cuda::Place;
using kernels::cuda::place_in_a;
using kernels::cuda::place_in_b;
using kernels::cuda::place_in_c;

constexpr int elements_of_chunk = 8, depth = 16, columns_of_fragment = 8;
using A = double[16][depth];
using Row [[gnu::vector_size(sizeof(double) * columns_of_fragment)]] = double;
using B = Row[depth];

template <class T>
const T& given(const LaneValue& value) {
  static_assert(sizeof(T) <= sizeof(LaneValue));
  return *reinterpret_cast<const T*>(value.bytes);
}

template <class S>
double number(std::uint32_t bits) {
  S element;
  element.bits = static_cast<std::uint16_t>(bits);
  return static_cast<double>(static_cast<float>(element));
}

/// Stores elements 2 n and 2 n + 1 of a lane from its n-th word.
template <class S, Place place_of(int, int), class Matrix>
void put(Matrix& matrix, int lane, int n, std::uint32_t word) {
  for (int half = 0; half < 2; ++half) {
    const Place place = place_of(lane, 2 * n + half);
    matrix[place.row][place.column] = number<S>(word >> (half * 16));
  }
}

/// Adds a b to each lane's four sums of the 16 x 8 matrix.
template <class SumsOf>
void add_product(const A& a, const B& b, const SumsOf& sums_of) {
  Row c[16];
  for (int lane = 0; lane < warp_size; ++lane)
    for (int i = 0; i < 4; ++i) c[place_in_c(lane, i).row][place_in_c(lane, i).column] = sums_of(lane)[i];
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k) c[row] += a[row][k] * b[k];
  for (int lane = 0; lane < warp_size; ++lane)
    for (int i = 0; i < 4; ++i)
      sums_of(lane)[i] = static_cast<float>(c[place_in_c(lane, i).row][place_in_c(lane, i).column]);
}

}  // namespace

template <class S>
void multiply_fragments(LaneValue* of_lanes) {
  A a;
  B b;
  for (int lane = 0; lane < warp_size; ++lane) {
    const auto& own = given<LaneProduct>(of_lanes[lane]);
    for (int n = 0; n < 4; ++n) put<S, place_in_a>(a, lane, n, own.a[n]);
    for (int n = 0; n < 2; ++n) put<S, place_in_b>(b, lane, n, own.b[n]);
  }
  add_product(a, b, [&](int lane) { return reinterpret_cast<LaneProduct*>(of_lanes[lane].bytes)->c; });
}
template void multiply_fragments<Half>(LaneValue*);
template void multiply_fragments<BFloat16>(LaneValue*);

DescribedMatrix::DescribedMatrix(const SharedArray& array, std::uint64_t descriptor, bool by_rows, Where where)
    : array_(array), by_rows_(by_rows), where_(where) {
  first_ = static_cast<int>(descriptor & 0x3fff);
  beyond_ = static_cast<int>(descriptor >> 16 & 0x3fff);
  eight_rows_ = static_cast<int>(descriptor >> 32 & 0x3fff);
  across_ = descriptor >> 62 == 1 ? 8 : 4;
  if (descriptor >> 62 == 0 || first_ / across_ % 8 != 0)
    refuse_product("begins at chunk " + std::to_string(first_) + ", in the middle of eight rows", where);
}
int DescribedMatrix::chunk(int n, int k) const {
  const int in_panel = n & (8 * across_ - 1), panel = (n - in_panel) / (across_ == 8 ? 64 : 32);
  const int plain = by_rows_ ? first_ + panel * beyond_ + in_panel / 8 + k / 8 * eight_rows_ + k % 8 * across_
                             : first_ + n / 8 * eight_rows_ + n % 8 * across_ + k / 8;
  return plain ^ (plain / 8 & (across_ - 1));
}
int DescribedMatrix::numbered_chunk(int first, int i) const {
  return by_rows_ ? chunk(first + i / 16 * 8, i % 16) : chunk(first + i / 2, i % 2 * 8);
}
std::uint16_t DescribedMatrix::bits(int n, int k) const {
  std::uint16_t bits;
  std::memcpy(&bits, array_.data + chunk(n, k) * 16 + (by_rows_ ? n : k) % elements_of_chunk * 2, 2);
  return bits;
}
void DescribedMatrix::take(int n, std::uint16_t (&bits)[16][8]) const {
  for (int i = 0; i < 16; ++i) {
    std::uint16_t eight[elements_of_chunk];  // of one k, or of one n
    std::memcpy(eight, array_.data + numbered_chunk(n, i) * 16, 16);
    for (int j = 0; j < elements_of_chunk; ++j) (by_rows_ ? bits[i][j] : bits[i % 2 * 8 + j][i / 2]) = eight[j];
  }
}
void DescribedMatrix::read(int first, int count) const {
  const int chunks = by_rows_ ? count / 8 * 16 : count * 2;
  for (int i = lane(); i < chunks; i += warp_size) read_for_product(array_, numbered_chunk(first, i), where_);
}

template <class S>
void multiply_rows_of_warp(LaneValue* of_lanes) {
  A a;
  for (int lane = 0; lane < warp_size; ++lane)
    for (int n = 0; n < 4; ++n) put<S, place_in_a>(a, lane, n, given<LaneOfWarpgroup>(of_lanes[lane]).a[n]);
  const auto& all = given<LaneOfWarpgroup>(of_lanes[0]);
  for (int first = 0; first < all.columns; first += columns_of_fragment) {
    std::uint16_t bits[depth][columns_of_fragment];
    all.b->take(first, bits);
    B b;
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < columns_of_fragment; ++column) b[k][column] = number<S>(bits[k][column]);
    add_product(a, b, [&](int lane) { return given<LaneOfWarpgroup>(of_lanes[lane]).sums + first / 2; });
  }
}
template void multiply_rows_of_warp<Half>(LaneValue*);
template void multiply_rows_of_warp<BFloat16>(LaneValue*);

}  // namespace poolgrad::emulation
