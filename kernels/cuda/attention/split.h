// Rows that tiles visit in attention of f32 by tensor cores, laid out in scratch as three rows of bf16 each, whose sum
// they are (split_tile.cuh): once for all tiles that visit them.
#pragma once

#include "kernels/cpu/workspace.h"
#include "kernels/cuda/attention/calls.cuh"

namespace poolgrad::kernels::cuda {

class SplitSpace {
 public:
  SplitSpace(Stream stream, const GpuSplitPlan& plan) : stream_(stream), memory_(stream, "attention", plan.elements) {}

  /// Both operands of a part of the call, of so many batch entries, heads and rows; what was put before is gone.
  /// (B, H, N, 3, D): the parts of a row follow each other, and a row's are `depth` apart.
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
