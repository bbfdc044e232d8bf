// A product of two tiles by a warpgroup, and variants with small faults, which the emulated device reports.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/mma/warpgroup.cuh"
#include "tests/kernels/cuda/device_array.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::cuda {

using testing::cuda0;
using testing::DeviceArray;

inline constexpr int warpgroup_rows = 64, warpgroup_threads = 128;

enum class ProductFault {
  none,
  no_fence,        // the asynchronous proxy may not see the copies
  fence_too_late,  // after the barrier: other threads' copies are not fenced
  no_begin,
  no_wait,        // reads registers before the sums are ready
  waits_for_one,  // waits for one of two groups
  returns,        // returns without a wait
  overwrites,     // overwrites an operand of a product
  overtakes,      // overwrites an operand of other warps' products without a barrier
  half_of_the_warps,
  middle_of_rows,  // a matrix begins at an invalid row
};
enum class Product { scores, scores_of_staged, scores_of_128, results };  // scores_of_128: own rows are staged too
template <Product product>
inline constexpr int visited_rows = product == Product::scores_of_128 ? 128 : warpgroup_rows;

/// Scores: sums (64 x 64 or 128) = own (64 x Depth) times the transpose of visited (64 or 128 x Depth). Results: sums
/// (64 x Depth) = own (64 x 64) times visited (64 x Depth). With `adds`, the sums start at 1 instead of 0.
template <class S, int Depth, Product product, ProductFault fault>
__global__ void multiply_tiles(const S* own, const S* visited, float* sums, bool adds) {
  constexpr int columns = product == Product::results ? Depth : visited_rows<product>,
                own_depth = product == Product::results ? 64 : Depth;
  constexpr PanelRows<warpgroup_rows, own_depth> own_tile{0};
  constexpr PanelRows<visited_rows<product>, Depth> tile{own_tile.count};
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const int thread = thread_of_block(), lane = thread % 32, first_row = thread / 32 * 16;
  for (int i = thread; i < own_tile.count; i += static_cast<int>(blockDim.x))
    cp_async_16(staged, own_tile.at(i / own_tile.chunks, i % own_tile.chunks), own + i * elements_of_chunk, true);
  for (int i = thread; i < tile.count; i += static_cast<int>(blockDim.x))
    cp_async_16(staged, tile.at(i / tile.chunks, i % tile.chunks), visited + i * elements_of_chunk, true);
  cp_async_commit();
  cp_async_wait<0>();
  if (fault != ProductFault::no_fence && fault != ProductFault::fence_too_late) fence_for_products();
  __syncthreads();
  if (fault == ProductFault::fence_too_late) fence_for_products();
  FragmentC c[static_cast<std::size_t>(columns / 8)];
  POOLGRAD_UNROLL
  for (FragmentC& part : c) {
    POOLGRAD_UNROLL
    for (float& value : part.value) value = 1;
  }
  const auto a_of = [&](int k) {
    const Place place = rows_before_columns(lane);
    return ldmatrix_x4<false>(staged, own_tile.at(first_row + place.row, 2 * k + place.column));
  };
  FragmentAB a[static_cast<std::size_t>(own_depth / 16)];
  POOLGRAD_UNROLL
  for (int k = 0; k < own_depth / 16; ++k) a[k] = a_of(k);
  if (fault != ProductFault::half_of_the_warps || thread < warpgroup_threads / 2) {
    if (fault != ProductFault::no_begin) begin_products();
    POOLGRAD_UNROLL
    for (int k = 0; k < own_depth / 16; ++k) {
      const StagedMatrix b = product == Product::results
                                 ? StagedMatrix::rows(tile, fault == ProductFault::middle_of_rows ? 16 * k + 4 : 16 * k)
                                 : StagedMatrix::columns(tile, 2 * k);
      if constexpr (product == Product::scores_of_staged || product == Product::scores_of_128)
        multiply_in_warpgroup<S>(c, StagedMatrix::columns(own_tile, 2 * k), staged, b, adds || k > 0);
      else
        multiply_in_warpgroup<S, product == Product::results>(c, a[k], staged, b, adds || k > 0);
      if (fault == ProductFault::waits_for_one) commit_products();
    }
    if (fault != ProductFault::waits_for_one) commit_products();
    if (fault == ProductFault::overwrites) cp_async_16(staged, tile.at(thread % warpgroup_rows, 0), visited, true);
    if (fault == ProductFault::waits_for_one)
      wait_for_products<1>(c);
    else if (fault != ProductFault::no_wait && fault != ProductFault::returns)
      wait_for_products<0>(c);
    if (fault == ProductFault::overtakes) cp_async_16(staged, tile.at(thread % warpgroup_rows, 0), visited, true);
  }
  POOLGRAD_UNROLL
  for (int f = 0; f < columns / 8; ++f) {
    POOLGRAD_UNROLL
    for (int i = 0; i < elements_of_c; ++i) {
      const Place place = place_in_c(lane, i);
      sums[(first_row + place.row) * columns + 8 * f + place.column] = c[f].value[i];
    }
  }
  if (fault == ProductFault::no_wait) wait_for_products<0>(c);
}

struct ProductOutcome {
  int wrong = 0;  // number of wrong elements
  std::string error = "";
};
template <class S, int Depth, Product product, ProductFault fault = ProductFault::none>
ProductOutcome multiply(bool adds = false, int block = warpgroup_threads) {
  constexpr std::size_t columns = product == Product::results ? Depth : visited_rows<product>,
                        inner = product == Product::results ? 64 : Depth;
  std::mt19937_64 random(test_seed());
  std::normal_distribution<float> normal;
  std::vector<S> own(warpgroup_rows * inner), visited(visited_rows<product> * Depth);
  for (S& x : own) x = S(normal(random));
  for (S& x : visited) x = S(normal(random));
  const DeviceArray<S> own_there(own), visited_there(visited);
  const DeviceArray<float> sums(std::vector<float>(warpgroup_rows * columns, 7.0f));
  const std::int64_t bytes =
      (PanelRows<warpgroup_rows, inner>::count + PanelRows<visited_rows<product>, Depth>::count) *
      std::int64_t{sizeof(Chunk)};
  launch("multiply", &multiply_tiles<S, Depth, product, fault>, {{1}, {block}, bytes}, cuda0, own_there.data(),
         visited_there.data(), sums.data(), adds);
  ProductOutcome outcome;
  std::vector<float> found;
  try {
    synchronize(cuda0);
    found = sums.read();
  } catch (const CudaError& error) {
    outcome.error = error.what();
    return outcome;
  }
  for (std::size_t i = 0; i < warpgroup_rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) {
      double sum = adds, magnitude = adds;
      for (std::size_t k = 0; k < inner; ++k) {
        const double term =
            static_cast<double>(static_cast<float>(own[i * inner + k])) *
            static_cast<float>(product == Product::results ? visited[k * Depth + j] : visited[j * inner + k]);
        sum += term, magnitude += std::abs(term);
      }
      outcome.wrong += !(std::abs(found[i * columns + j] - sum) <= (inner + 1) * 0x1p-22 * magnitude);
    }
  return outcome;
}

class Warpgroup : public ::testing::Test {
  void SetUp() override {
    if (!has_warpgroups(0)) GTEST_SKIP() << "a GPU of compute capability 9.0, and code for it, are needed";
  }
};

}  // namespace poolgrad::kernels::cuda
