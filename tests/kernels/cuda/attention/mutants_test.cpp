// Small faults in a kernel built from the parts of tensor-core attention. Wrong results or a report of the emulated
// device reveal each of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "kernels/cuda/attention/mma_tile.cuh"
#include "kernels/schedule/device_program.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::cuda {
namespace {

using ::testing::AllOf;
using testing::cuda0;
using testing::DeviceArray;
using ::testing::HasSubstr;

enum class TileFault { none, wrong_mask_edge, swapped_lanes, missing_wait, missing_barrier, overtaken_read };

constexpr int tile_depth = 64;

/// Attention without softmax: out_i = sum of <q_i, k_j> v_j over the keys that a query sees, with rounded products. A
/// block takes one tile. Each kind but the first has one fault.
template <TileFault fault>
__global__ void attend_linearly(AttentionProgram program, Operand q, Operand k, Operand v, float* out) {
  constexpr StagedTile<tile_depth> queries{0}, keys{queries.count}, values{2 * queries.count};
  POOLGRAD_DYNAMIC_SHARED(Chunk, staged);
  const Progression tile = program.tile[blockIdx.x];
  const LaneOfTile at;
  // Exchanges the row addresses of lanes 8 to 15 and 16 to 23.
  const bool swaps = fault == TileFault::swapped_lanes && (at.lane / 8 == 1 || at.lane / 8 == 2);
  const LaneOfTile pointing{swaps ? at.lane ^ 24 : at.lane, at.first_row};
  FragmentsC<tile_depth> results = {};
  Visits visits(program, tile, blockIdx.x);
  for (VisitedRows now = visits.next(); now.count > 0; now = visits.next()) {
    if (fault != TileFault::overtaken_read) __syncthreads();  // all threads have read the previous tile
    OwnRows<BFloat16, StagedTile<tile_depth>, true> own(q, rows_of(q, 0, 0, tile, 0, static_cast<int>(tile.count)),
                                                        pointing);
    own.stage(staged, queries);
    stage_rows_async(staged, keys, k, now.of(program, k, 0, 0));
    stage_rows_async(staged, values, v, now.of(program, v, 0, 0));
    cp_async_commit();
    if (fault != TileFault::missing_wait) cp_async_wait<0>();
    if (fault != TileFault::missing_barrier) __syncthreads();
    Scores scores;
    own.take(staged);
    multiply_staged(scores, staged, own, keys, at);
    for (int e = 0; e < scores_of_lane; ++e) {
      const int f = e / elements_of_c, i = e % elements_of_c, column = at.column(f, i);
      const Columns seen = columns_seen(program, now, tile, at.row(i / 2));
      const bool counts =
          fault == TileFault::wrong_mask_edge ? seen.begin <= column && column <= seen.end : seen.contain(column);
      if (!counts) scores[f].value[i] = 0;
    }
    add_weighted_staged<BFloat16, tile_depth>(results, scores, staged, values, at);
  }
  for (int e = 0; e < tile_depth / 8 * elements_of_c; ++e) {
    const int f = e / elements_of_c, i = e % elements_of_c, row = at.row(i / 2);
    if (row < tile.count) out[(tile.row + row * tile.stride) * tile_depth + at.column(f, i)] = results[f].value[i];
  }
}

/// Random rows on the host and on the device.
struct RandomRows {
  std::vector<BFloat16> host;
  DeviceArray<BFloat16> there;

  RandomRows(std::int64_t count, std::mt19937_64& random) : host(numbers(count, random)), there(host) {}
  static std::vector<BFloat16> numbers(std::int64_t count, std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    std::vector<BFloat16> all(static_cast<std::size_t>(count * tile_depth));
    for (BFloat16& x : all) x = BFloat16(normal(random));
    return all;
  }
  double at(std::int64_t row, std::int64_t column) const {
    return static_cast<float>(host[static_cast<std::size_t>(row * tile_depth + column)]);
  }
  Operand operand() const {
    const std::int64_t count = static_cast<std::int64_t>(host.size()) / tile_depth;
    return Operand(
        View{there.data(), DType::bf16, 4, {1, count, 1, tile_depth}, {count * tile_depth, tile_depth, tile_depth, 1}});
  }
};

/// Describes the first wrong result of 70 queries over 140 keys; each query sees 91 keys, its own last. "" if there is
/// none.
template <TileFault fault>
std::string found_wrong() {
  constexpr std::int64_t queries = 70, keys = 140, offset = keys - queries, left = 90;
  std::mt19937_64 random(test_seed());
  const RandomRows q(queries, random), k(keys, random), v(keys, random);
  const DeviceArray<float> out(std::vector<float>(queries * tile_depth));
  AttentionSchedule schedule;
  schedule.queries = PositionMap::contiguous(queries, offset);
  schedule.keys = PositionMap::contiguous(keys);
  schedule.heads = 1;
  schedule.left = left;
  schedule.right = 0;
  const auto program = program_on_device(cuda0, schedule, mma_rows);
  launch("attend linearly", &attend_linearly<fault>,
         {{program->program().tiles}, {mma_threads}, 3 * StagedTile<tile_depth>::count * std::int64_t{sizeof(Chunk)}},
         cuda0, program->program(), q.operand(), k.operand(), v.operand(), out.data());
  std::vector<float> found;
  try {
    synchronize(cuda0);
    found = out.read();
  } catch (const CudaError& error) {
    return error.what();
  }
  for (std::int64_t i = 0; i < queries; ++i)
    for (std::int64_t c = 0; c < tile_depth; ++c) {
      double expected = 0, magnitude = 0;
      for (std::int64_t j = std::max<std::int64_t>(0, i + offset - left); j <= i + offset; ++j) {
        double product = 0;
        for (std::int64_t d = 0; d < tile_depth; ++d) product += q.at(i, d) * k.at(j, d);
        expected += product * v.at(j, c);
        magnitude += std::abs(product * v.at(j, c));
      }
      const float actual = found[static_cast<std::size_t>(i * tile_depth + c)];
      if (!(std::abs(actual - expected) <= (0x1p-8 + 1e-5) * magnitude))
        return "query " + std::to_string(i) + ", column " + std::to_string(c) + " is " + std::to_string(actual) +
               ", not " + std::to_string(expected);
    }
  return "";
}

TEST(AttentionMutants, ACorrectKernelHasNoError) {
  EXPECT_EQ(found_wrong<TileFault::none>(), "") << "seed " << test_seed();
}

TEST(AttentionMutants, AWrongMaskEdgeIsDetected) {
  // The first query whose extra key adds more than the error bound of 91 roundings.
  EXPECT_THAT(found_wrong<TileFault::wrong_mask_edge>(), HasSubstr("query ")) << "seed " << test_seed();
}

TEST(AttentionMutants, SwappedLanesAreDetectedInTheFirstQuery) {
  EXPECT_THAT(found_wrong<TileFault::swapped_lanes>(), HasSubstr("query 0, column "));
}

TEST(AttentionMutants, AMissingWaitIsReported) {
  EXPECT_THAT(
      found_wrong<TileFault::missing_wait>(),
      AllOf(HasSubstr("[attend linearly] thread "), HasSubstr(" reads shared staged["),
            HasSubstr("which is the target of an unfinished copy of thread "), HasSubstr("has not waited for")));
}

TEST(AttentionMutants, AMissingBarrierIsReported) {
  EXPECT_THAT(found_wrong<TileFault::missing_barrier>(),
              AllOf(HasSubstr("[attend linearly] thread "), HasSubstr(" shared staged["),
                    ::testing::AnyOf(HasSubstr("with no barrier in between"), HasSubstr("has not waited for"),
                                     HasSubstr("no thread has written"))));
}

TEST(AttentionMutants, ACopyOvertakingAReaderIsReported) {
  EXPECT_THAT(found_wrong<TileFault::overtaken_read>(),
              AllOf(HasSubstr("[attend linearly] thread "), HasSubstr(" shared staged["),
                    ::testing::AnyOf(HasSubstr("with no barrier in between"), HasSubstr("has not waited for"))));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
