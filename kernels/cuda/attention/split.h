// Splits the visited rows of f32 attention for tensor cores. Each row becomes three bf16 rows in scratch memory that
// sum to it (split_tile.cuh). All tiles that visit the rows share the split rows.
#pragma once

#include "kernels/cpu/workspace.h"
#include "kernels/cuda/attention/calls.cuh"

namespace poolgrad::kernels::cuda {

class SplitSpace {
 public:
  SplitSpace(Stream stream, const GpuSplitPlan& plan) : stream_(stream), memory_(stream, "attention", plan.elements) {}

  /// Splits both operands of a part of the call and overwrites the previous part. Layout (B, H, N, 3, D): the three
  /// parts of a row are adjacent, `depth` elements apart.
  struct Both {
    Operand first, second;
  };
  Both put(const Operand& first, const Operand& second, std::int64_t batch, std::int64_t heads, std::int64_t rows);

 private:
  Operand put_one(const Operand& x, std::int64_t begin, std::int64_t batch, std::int64_t heads, std::int64_t rows);

  Stream stream_;
  Workspace<std::uint16_t> memory_;
};

}  // namespace poolgrad::kernels::cuda
