#include "attention/modules/ring_attention.h"

#include <fmt/format.h>

#include "allocator/error.h"

namespace poolgrad::attention {

ModuleRing::ModuleRing(const RingSetup& setup) : setup_(setup) {
  if (setup.ring_size < 1)
    throw ValueError(fmt::format("[ring_attention] needs at least one rank: ring_size {}", setup.ring_size));
  if (setup.communicator && setup.ring_size != 1 && setup.ring_size != setup.communicator->size())
    throw ValueError(
        fmt::format("[ring_attention] the communicator has another number of ranks: ring_size {}, communicator of {}",
                    setup.ring_size, setup.communicator->size()));
}

int ModuleRing::size() const { return setup_.communicator ? setup_.communicator->size() : setup_.ring_size; }

std::int64_t ModuleRing::whole_length(std::int64_t part, std::int64_t told) const {
  if (!takes_parts(told)) return part;
  return told > 0 ? told : part * size();
}

kernels::PositionMap ModuleRing::positions(std::int64_t rows, std::int64_t keys) const {
  if (has_whole()) return kernels::PositionMap::contiguous(rows, keys - rows);
  const int ranks = size();
  return shard_map(setup_.layout, rows * ranks, setup_.communicator->rank(), ranks, (keys - rows) * ranks);
}

std::optional<Pattern> ModuleRing::of_one_process(const Pattern& pattern) const {
  return has_whole() ? std::optional(pattern) : std::nullopt;
}

Tensor ModuleRing::attend(const Pattern& pattern, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttendOptions& options, std::int64_t whole) const {
  const bool in_parts = takes_parts(whole), biased = options.bias.defined();
  const bool one_rank = in_parts ? size() == 1 && biased : setup_.communicator || setup_.ring_size == 1;
  const bool few = options.key_positions.gap > 0 || (q.defined() && q.rank() == 4 && q.size(1) < setup_.ring_size);
  // Several ranks refuse a bias, however few the queries are.
  if (one_rank || (few && !in_parts && !biased)) return attention::attend(q, k, v, pattern, options).out;
  RingOptions ring{.attend = options,
                   .layout = setup_.layout,
                   .exchange = setup_.exchange,
                   .devices = setup_.devices,
                   .statistics = statistics_};
  if (in_parts) {
    if (whole > 0) ring.queries = ring.keys = whole;
    return ring_attend(q, k, v, pattern, setup_.communicator, ring).out;
  }
  return ring_attend_all(q, k, v, pattern, setup_.ring_size, ring, setup_.progress).out;
}

RingAttention::RingAttention(const Pattern& pattern, const RingSetup& ring, const CoreOptions& options)
    : OnRing(ring, options, choose_memory_mode(0, true, options.memory_mode)), pattern_(pattern) {}

Tensor RingAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  const std::int64_t rows = k.defined() && k.rank() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  const std::int64_t length = ring_.whole_length(call.key_positions.length(rows), call.whole);
  if (length > pattern_.length())
    throw ValueError(fmt::format("[ring_attention] the pattern is made for {} positions, and the sequence has {}: {}",
                                 pattern_.length(), length, pattern_.to_string()));
  return ring_.attend(pattern_.causally(call.causal), q, k, v, attend_options(call), call.whole);
}

RingDilatedAttention::RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                                           const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring,
                                           const DilatedOptions& dilated, const CoreOptions& options)
    : OnRing(ring, segment_lengths, dilation_rates, dilated, options, true) {}

Tensor RingDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call) {
  if (q.defined() && q.rank() == 4) check_heads(q.size(2));
  return ring_.attend(pattern().causally(call.causal), q, k, v, attend_options(call), call.whole);
}

BlockSparseRingDilatedAttention::BlockSparseRingDilatedAttention(const SparsePatternConfig& sparse_config,
                                                                 const RingSetup& ring, const CoreOptions& options,
                                                                 const std::vector<std::int64_t>& segment_lengths,
                                                                 const std::vector<std::int64_t>& dilation_rates)
    : OnRing(ring, sparse_config, options, segment_lengths, dilation_rates) {}

Tensor BlockSparseRingDilatedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const AttentionCall& call) {
  const std::int64_t rows = k.defined() && k.rank() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  const Pattern blocks =
      pattern(ring_.whole_length(call.key_positions.length(rows), call.whole), call.causal).causally(call.causal);
  return ring_.attend(blocks, q, k, v, attend_options(call), call.whole);
}

}  // namespace poolgrad::attention
