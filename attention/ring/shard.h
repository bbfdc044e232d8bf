// Which positions of a sequence each rank of a ring owns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/schedule/attention_schedule.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// contiguous: rank r owns the r-th of R chunks. zigzag: the chunks r and 2R - 1 - r of 2R, which gives every rank the
/// same work under a causal pattern. striped: the positions t with t mod R = r (Brandon et al. 2023). Lengths that do
/// not divide give chunks that differ by one position at most; short ones leave ranks without any.
enum class Layout { contiguous, zigzag, striped };

/// "contiguous", "zigzag", "striped"; parsing throws ValueError naming all three.
std::string to_string(Layout layout);
Layout parse_layout(const std::string& text);

/// The positions of rank `rank` of `ranks`, in a sequence whose indices 0 .. length - 1 lie at positions `offset`, ...
kernels::PositionMap shard_map(Layout layout, std::int64_t length, int rank, int ranks, std::int64_t offset = 0);

/// The ranks that have a position of [begin, end) in a sequence of `length`; a rank may come up more than once.
std::vector<int> shard_owners(Layout layout, std::int64_t length, int ranks, std::int64_t begin, std::int64_t end);

/// A rank's part of a tensor whose dimension `dim` is the sequence: a copy of its rows, in order. No gradient record.
Tensor take_shard(const Tensor& whole, Layout layout, int rank, int ranks, int dim = 1);
/// All parts together; the inverse of take_shard. Throws ShapeError where the parts are not those of one sequence. No
/// gradient record.
Tensor join_shards(const std::vector<Tensor>& shards, Layout layout, int dim = 1);

}  // namespace poolgrad::attention
