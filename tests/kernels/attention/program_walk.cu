// Kernels that read any program. Builds with nvcc check their resource report
// (tests/kernels/attention/program_walk_report.cmake).
#include "tests/kernels/attention/program_walk.h"

namespace poolgrad::kernels::testing_support {

/// A block takes one tile, longest first; a thread walks one row and computes nothing else.
__global__ void walk_program(const AttentionProgram program, RowWalk* walks) {
  const std::int64_t number = program.longest_first[blockIdx.x];
  if (threadIdx.x >= program.tile[number % program.tiles].count) return;
  RowWalk walk;
  walk_row(program, number, threadIdx.x,
           [&](const AttentionRun&, std::int64_t key, double log_multiplicity) { walk.add(key, log_multiplicity); });
  walks[blockIdx.x * blockDim.x + threadIdx.x] = walk;
}

/// Counts the masked pairs of head h one by one.
__global__ void __launch_bounds__(256, 4)
    count_masked(const AttentionProgram program, std::int64_t h, std::int64_t* counts) {
  const std::int64_t number = program.longest_first[blockIdx.x];
  const Progression& tile = program.tile[number % program.tiles];
  if (threadIdx.x >= tile.count) return;
  std::int64_t count = 0;
  walk_row(program, number, threadIdx.x, [&](const AttentionRun& run, std::int64_t key, double) {
    if (run.has(AttentionRun::masked)) count += program.keeps(run, h, tile.position + threadIdx.x * tile.step, key);
  });
  counts[blockIdx.x * blockDim.x + threadIdx.x] = count;
}

}  // namespace poolgrad::kernels::testing_support
