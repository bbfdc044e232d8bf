// Tensor-core instructions: the lane of each element, and results, on a GPU and on the emulated device.
#include "kernels/cuda/mma/mma.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/mma/staged.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::cuda {
namespace {

using testing::cuda0;
using testing::DeviceArray;

// As written in PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
TEST(Fragments, FollowThePtxIsa) {
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(place_in_a(lane, i).row, (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8);
      EXPECT_EQ(place_in_a(lane, i).column, i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(place_in_b(lane, i).row, i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
      EXPECT_EQ(place_in_b(lane, i).column, group);
      EXPECT_EQ(place_in_c(lane, i).row, i < 2 ? group : group + 8);
      EXPECT_EQ(place_in_c(lane, i).column, in_group * 2 + (i & 1));
    }
  }
}

template <class PlaceOf>
std::size_t distinct_places(int elements, const PlaceOf& place_of) {
  std::set<std::pair<int, int>> places;
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < elements; ++i) places.insert({place_of(lane, i).row, place_of(lane, i).column});
  return places.size();
}

TEST(Fragments, HoldEveryElementOnce) {
  EXPECT_EQ(distinct_places(elements_of_a, place_in_a), 16 * 16);
  EXPECT_EQ(distinct_places(elements_of_b, place_in_b), 16 * 8);
  EXPECT_EQ(distinct_places(elements_of_c, place_in_c), 16 * 8);
  EXPECT_EQ(distinct_places(2, place_in_matrix), 8 * 8);
}

/// Extra shared-memory accesses of eight lanes with 16 bytes each: 0 without a bank conflict.
template <class ChunkOf>
int conflicts(const ChunkOf& chunk_of) {
  int of_bank[8] = {};  // a bank of 16 bytes is four of the 32 banks
  for (int lane = 0; lane < 8; ++lane) ++of_bank[chunk_of(lane) % 8];
  return *std::max_element(of_bank, of_bank + 8) - 1;
}

template <int Depth>
void expect_no_conflicts() {
  constexpr StagedRows<64, Depth> staged{StagedRows<64, Depth>::count};
  constexpr int chunks = Depth / 8;
  std::set<int> places;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < chunks; ++chunk) {
      places.insert(staged.at(row, chunk));
      EXPECT_GE(staged.at(row, chunk), staged.first);
      EXPECT_LT(staged.at(row, chunk), staged.first + staged.count);
    }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(staged.count)) << "no two at one place";
  int plain = 0;
  for (const auto& place_of : {rows_before_columns, columns_before_rows})
    for (int row = 0; row < 64; row += 16)
      for (int chunk = 0; chunk < chunks; chunk += 2)
        for (int matrix = 0; matrix < 4; ++matrix) {  // ldmatrix.x4 reads the matrices one after another
          const auto pointed_to = [&](int lane) { return place_of(lane_of_matrix_row(matrix, lane)); };
          EXPECT_EQ(conflicts([&](int lane) {
                      return staged.at(row + pointed_to(lane).row, chunk + pointed_to(lane).column);
                    }),
                    0);
          plain = std::max(plain, conflicts([&](int lane) {
                             return (row + pointed_to(lane).row) * chunks + chunk + pointed_to(lane).column;
                           }));
        }
  EXPECT_EQ(plain, 7) << "rows one after another would be in one bank";
  for (int first = 0; first < 64 * chunks; first += 8)  // adjacent threads write adjacent chunks of a row
    EXPECT_EQ(conflicts([&](int lane) { return staged.at((first + lane) / chunks, (first + lane) % chunks); }), 0);
}

TEST(StagedRows, HaveNoBankConflicts) {
  expect_no_conflicts<64>();
  expect_no_conflicts<128>();
}

/// d = a b + c: a 16 x 16 and c 16 x 8 row-major, b column-major with columns of 16 elements. The fault exchanges the
/// row addresses of lanes 8 to 15 and 16 to 23.
template <class S, bool swaps_lanes = false>
__global__ void multiply_fragments(const S* a, const S* b, const float* c, float* d) {
  POOLGRAD_SHARED(Chunk, staged, 64);
  const int lane = static_cast<int>(threadIdx.x);
  cp_async_16(staged, lane, a + elements_of_chunk * lane, true);
  if (lane < 16) cp_async_16(staged, 32 + lane, b + elements_of_chunk * lane, true);
  if (lane >= 16) cp_async_16(staged, 32 + lane, b, false);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  FragmentC sum;
  for (int i = 0; i < elements_of_c; ++i) sum.value[i] = c[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column];
  const Place of_a = rows_before_columns(lane),
              of_b = swaps_lanes ? rows_before_columns(lane) : columns_before_rows(lane);
  const FragmentAB left = ldmatrix_x4<false>(staged, of_a.row * 2 + of_a.column),
                   right = ldmatrix_x4<false>(staged, 32 + of_b.row * 2 + of_b.column);
  mma_m16n8k16<S>(sum, left, right.word[0], right.word[1]);
  mma_m16n8k16<S>(sum, left, right.word[2], right.word[3]);  // columns 8 to 15 of b are zeros
  for (int i = 0; i < elements_of_c; ++i) d[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column] = sum.value[i];
}
/// As above with b row-major, 16 x 16; multiplies the right half of b.
template <class S>
__global__ void multiply_transposed(const S* a, const S* b, const float* c, float* d) {
  POOLGRAD_SHARED(Chunk, staged, 64);
  const int lane = static_cast<int>(threadIdx.x);
  cp_async_16(staged, lane, a + elements_of_chunk * lane, true);
  cp_async_16(staged, 32 + lane, b + elements_of_chunk * lane, true);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  FragmentC sum;
  for (int i = 0; i < elements_of_c; ++i) sum.value[i] = c[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column];
  const Place place = rows_before_columns(lane);
  const FragmentAB left = ldmatrix_x4<false>(staged, place.row * 2 + place.column),
                   right = ldmatrix_x4<true>(staged, 32 + place.row * 2 + place.column);
  mma_m16n8k16<S>(sum, left, right.word[2], right.word[3]);
  for (int i = 0; i < elements_of_c; ++i) d[place_in_c(lane, i).row * 8 + place_in_c(lane, i).column] = sum.value[i];
}

/// Number of wrong elements in products of random matrices by a kernel.
template <class S>
int wrong_products(void (*kernel)(const S*, const S*, const float*, float*), bool transposed) {
  std::mt19937_64 random(test_seed());
  std::normal_distribution<float> normal;
  std::vector<S> a(256), b(transposed ? 256 : 128);
  std::vector<float> c(128);
  for (S& x : a) x = S(normal(random));
  for (S& x : b) x = S(normal(random));
  for (float& x : c) x = normal(random);
  const DeviceArray<S> a_there(a), b_there(b);
  const DeviceArray<float> c_there(c), d_there(std::vector<float>(128, 0.0f));
  launch("multiply", kernel, {{1}, {32}}, cuda0, a_there.data(), b_there.data(), c_there.data(), d_there.data());
  const std::vector<float> d = d_there.read();
  int wrong = 0;
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      double sum = c[i * 8 + j], magnitude = std::abs(sum);
      for (std::size_t k = 0; k < 16; ++k) {
        const double term = static_cast<double>(static_cast<float>(a[i * 16 + k])) *
                            static_cast<float>(b[transposed ? k * 16 + 8 + j : j * 16 + k]);
        sum += term, magnitude += std::abs(term);
      }
      // 17 numbers are added; each sum is rounded or truncated.
      wrong += !(std::abs(d[i * 8 + j] - sum) <= 17 * 0x1p-23 * magnitude);
    }
  return wrong;
}

TEST(Mma, MultipliesFragmentsLoadedByLdmatrix) {
  EXPECT_EQ(wrong_products<Half>(&multiply_fragments<Half>, false), 0) << "seed " << test_seed();
  EXPECT_EQ(wrong_products<BFloat16>(&multiply_fragments<BFloat16>, false), 0) << "seed " << test_seed();
  EXPECT_EQ(wrong_products<Half>(&multiply_transposed<Half>, true), 0) << "seed " << test_seed();
  EXPECT_EQ(wrong_products<BFloat16>(&multiply_transposed<BFloat16>, true), 0) << "seed " << test_seed();
}

TEST(Mma, GivesAnotherProductForSwappedLanes) {
  EXPECT_GT(wrong_products<Half>(&multiply_fragments<Half, true>, false), 100) << "of 128";
}

__global__ void pack_pairs(const float* x, std::uint32_t* halves, std::uint32_t* bfloats, float* powers) {
  const unsigned i = threadIdx.x;
  halves[i] = packed_pair<Half>(x[2 * i], x[2 * i + 1]);
  bfloats[i] = packed_pair<BFloat16>(x[2 * i], x[2 * i + 1]);
  powers[i] = exp2_approx(x[i]);
}

TEST(Mma, PairsAreRoundedToNearestAndPowersAreClose) {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, -3.3e38f, 65504.0f, 65520.0f, 1e-8f, 3e-8f};
  x.resize(64, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 10; i < 60; ++i) x[i] = 0.37f * static_cast<float>(i) - 12.0f;
  const DeviceArray<float> there(x), powers(std::vector<float>(32, 7.0f));
  const DeviceArray<std::uint32_t> halves(std::vector<std::uint32_t>(32, 7)),
      bfloats(std::vector<std::uint32_t>(32, 7));
  launch("pack", &pack_pairs, {{1}, {32}}, cuda0, there.data(), halves.data(), bfloats.data(), powers.data());
  const auto as_halves = halves.read(), as_bfloats = bfloats.read();
  const auto as_powers = powers.read();
  for (std::size_t i = 0; i < 32; ++i) {
    const auto pair = [](auto first, auto second) {
      return static_cast<std::uint32_t>(first.bits) | static_cast<std::uint32_t>(second.bits) << 16;
    };
    EXPECT_EQ(as_halves[i], pair(Half(x[2 * i]), Half(x[2 * i + 1]))) << x[2 * i] << " " << x[2 * i + 1];
    EXPECT_EQ(as_bfloats[i], pair(BFloat16(x[2 * i]), BFloat16(x[2 * i + 1]))) << x[2 * i] << " " << x[2 * i + 1];
    if (std::abs(x[i]) < 100) {
      EXPECT_NEAR(as_powers[i], std::exp2(x[i]), 4 * 0x1p-23 * std::exp2(x[i]));
    }
  }
  EXPECT_EQ(as_powers[0], 1.0f);
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
