#include "attention/modules/pattern_attention.h"

#include <fmt/format.h>

#include <utility>

#include "allocator/error.h"

namespace poolgrad::attention {

PatternAttention::PatternAttention(const Pattern& pattern, const RingSetup& ring, const CoreOptions& options,
                                   PatternByLength by_length)
    : AttentionCore(options), pattern_(pattern), by_length_(std::move(by_length)), setup_(ring) {
  if (ring.ring_size < 1)
    throw ValueError(fmt::format("[ring_attention] needs at least one rank: ring_size {}", ring.ring_size));
  if (ring.communicator && ring.ring_size != 1 && ring.ring_size != ring.communicator->size())
    throw ValueError(
        fmt::format("[ring_attention] the communicator has another number of ranks: ring_size {}, communicator of {}",
                    ring.ring_size, ring.communicator->size()));
}

Pattern PatternAttention::pattern(std::int64_t length, bool causal) const {
  return by_length_ ? by_length_(length, causal) : pattern_;
}

double PatternAttention::density(std::int64_t length, bool causal) const {
  return pattern(length, causal).causally(causal).density(1, length, length);
}

void PatternAttention::check_heads(std::int64_t heads) const {
  AttentionCore::check_heads(heads);
  pattern_.compile(heads, kernels::PositionMap::contiguous(0, 0), kernels::PositionMap::contiguous(0, 0));
}

std::optional<Pattern> PatternAttention::fixed_pattern(std::int64_t length, bool causal) const {
  return has_whole() ? std::optional(pattern(length, causal)) : std::nullopt;
}

bool PatternAttention::looks_ahead(bool causal) const {
  return by_length_ ? !causal : pattern_.causally(causal).looks_ahead();
}

void PatternAttention::check_continued(std::int64_t keys, std::int64_t longest) const {
  if (by_length_ && keys > longest)
    throw ValueError(
        fmt::format("[block_sparse] sparsity_ratio gives each length its own pattern, so a sequence cannot continue "
                    "beyond the context of its state: {} positions, context {}",
                    keys, longest));
}

std::int64_t PatternAttention::whole_length(std::int64_t part, std::int64_t told) const {
  if (!takes_parts(told)) return part;
  return told > 0 ? told : part * ranks();
}

kernels::PositionMap PatternAttention::positions(std::int64_t rows, std::int64_t keys) const {
  if (has_whole()) return kernels::PositionMap::contiguous(rows, keys - rows);
  return shard_map(setup_.layout, rows * ranks(), setup_.communicator->rank(), ranks(), (keys - rows) * ranks());
}

Tensor PatternAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call) {
  const std::int64_t rows = k.defined() && k.dim() == 4 ? k.size(1) : 0;  // attend() refuses the rest
  const std::int64_t length = whole_length(call.key_positions.length(rows), call.whole);
  const Pattern of_length = pattern(length, call.causal);
  if (length > of_length.length())
    throw ValueError(fmt::format("[ring_attention] the pattern is made for {} positions, and the sequence has {}: {}",
                                 of_length.length(), length, of_length.to_string()));
  AttendOptions options = attend_options(call);
  options.whole = 0;
  const bool in_parts = takes_parts(call.whole), biased = options.bias.defined();
  const bool one_rank = in_parts ? ranks() == 1 && biased : setup_.communicator || setup_.ring_size == 1;
  const bool few = options.key_positions.gap > 0 || (q.defined() && q.dim() == 4 && q.size(1) < setup_.ring_size);
  // Several ranks refuse a bias, even with few queries.
  if (one_rank || (few && !in_parts && !biased)) return attend(q, k, v, of_length, options).out;
  RingOptions ring{.attend = options,
                   .layout = setup_.layout,
                   .exchange = setup_.exchange,
                   .devices = setup_.devices,
                   .statistics = statistics_};
  if (!in_parts) return ring_attend_all(q, k, v, of_length, setup_.ring_size, ring, setup_.progress).out;
  if (call.whole > 0) ring.queries = ring.keys = call.whole;
  return ring_attend(q, k, v, of_length, setup_.communicator, ring).out;
}

}  // namespace poolgrad::attention
