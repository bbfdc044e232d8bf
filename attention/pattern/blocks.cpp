#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

using kernels::AttentionTerm;

/// What every kernel's tiles divide.
constexpr std::int64_t granularity = 16;

void check_block(const char* op, std::int64_t block) {
  if (block < 1 || block % granularity != 0 || block > std::int64_t{1} << 30)
    throw ValueError("[" + std::string(op) + "] block must be a positive multiple of " + std::to_string(granularity) +
                     ", at most 2^30: " + std::to_string(block));
}

std::shared_ptr<const PatternTerms> alone(PatternTerms::Term term) {
  auto result = std::make_shared<PatternTerms>();
  result->terms.push_back(std::move(term));
  return result;
}

}  // namespace

Pattern Pattern::block_offsets(std::int64_t block, std::vector<std::int64_t> offsets) {
  return block_offsets(block, std::vector<std::vector<std::int64_t>>{std::move(offsets)});
}

Pattern Pattern::block_offsets(std::int64_t block, std::vector<std::vector<std::int64_t>> offsets) {
  check_block("block_offsets", block);
  if (offsets.empty() || offsets.size() > AttentionTerm::max_sets)
    throw ValueError("[block_offsets] there must be 1 to " + std::to_string(AttentionTerm::max_sets) +
                     " lists: " + std::to_string(offsets.size()));
  PatternTerms::Term result = term_of(TermKind::offsets, block);
  AttentionTerm& term = result.term;
  term.sets = static_cast<std::int32_t>(offsets.size());
  int runs = 0;
  for (std::size_t s = 0; s < offsets.size(); ++s) {
    std::vector<std::int64_t>& list = offsets[s];
    if (list.empty()) throw ValueError("[block_offsets] list " + std::to_string(s) + " has no offset");
    std::sort(list.begin(), list.end());
    if (list.front() < -(std::int64_t{1} << 30) || list.back() > std::int64_t{1} << 30)
      throw ValueError("[block_offsets] an offset is out of range: " +
                       std::to_string(list.front() < 0 ? list.front() : list.back()));
    for (std::size_t n = 0; n < list.size(); ++n) {
      const auto offset = static_cast<std::int32_t>(list[n]);
      if (n > 0 && list[n] <= list[n - 1] + 1) {
        term.run[runs - 1].last = offset;
        continue;
      }
      if (runs == AttentionTerm::max_runs)
        throw ValueError("[block_offsets] there are more than " + std::to_string(AttentionTerm::max_runs) +
                         " runs of neighbouring offsets");
      term.run[runs++] = {offset, offset};
    }
    term.set_begin[s + 1] = static_cast<std::int16_t>(runs);
  }
  return Pattern(alone(std::move(result)));
}

Pattern Pattern::dilated_sparse(std::int64_t block, std::vector<std::int64_t> rates) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t rate : rates) {
    if (rate < 1) throw ValueError("[dilated_sparse] rates must be positive: " + std::to_string(rate));
    offsets.push_back(rate);
    offsets.push_back(-rate);
  }
  return block_offsets(block, std::move(offsets));
}

Pattern Pattern::local_window(std::int64_t block, std::int64_t window) {
  check_block("local_window", block);
  if (window < 0 || window > std::int64_t{1} << 60)
    throw ValueError("[local_window] the window is out of range: " + std::to_string(window));
  return spaced_blocks(block, 1, window / block / 2);
}

Pattern Pattern::spaced_blocks(std::int64_t block, std::int64_t step, std::int64_t reach) {
  check_block("spaced_blocks", block);
  if (step < 1 || reach < 0)
    throw ValueError("[spaced_blocks] the step must be at least 1 and the reach not negative: step " +
                     std::to_string(step) + ", reach " + std::to_string(reach));
  constexpr std::int64_t farthest = std::int64_t{1} << 30;
  if (step > farthest) step = farthest, reach = std::min(reach, farthest - 1);
  const std::int64_t steps = std::min(reach, farthest) / step;
  PatternTerms::Term result = term_of(TermKind::offsets, block);
  result.term.sets = 1;
  result.term.set_begin[1] = 1;
  result.term.step = steps == 0 ? 1 : static_cast<std::int32_t>(step);
  result.term.run[0] = {static_cast<std::int32_t>(-steps * step), static_cast<std::int32_t>(steps * step)};
  return Pattern(alone(std::move(result)));
}

Pattern Pattern::global_local(std::int64_t block, std::int64_t window, std::int64_t count) {
  return local_window(block, window) | global_tokens(count);
}

Pattern Pattern::random_blocks(std::int64_t block, double density, std::uint64_t seed) {
  check_block("random_blocks", block);
  if (!(density > 0.0 && density <= 1.0))
    throw ValueError("[random_blocks] density must be in (0, 1]: " + std::to_string(density));
  PatternTerms::Term result = term_of(TermKind::random, block);
  result.term.seed = seed;
  result.term.threshold = static_cast<std::uint64_t>(std::ldexp(density, 53));
  return Pattern(alone(std::move(result)));
}

Pattern Pattern::blocks(std::int64_t block, std::vector<std::int32_t> row_begin, std::vector<std::int32_t> columns) {
  std::vector<BlockList> lists(1);
  lists[0] = {std::move(row_begin), std::move(columns)};
  return blocks(block, std::move(lists));
}

Pattern Pattern::blocks(std::int64_t block, std::vector<BlockList> lists) {
  check_block("blocks", block);
  if (lists.empty()) throw ValueError("[blocks] there is no list");
  std::vector<std::vector<std::int32_t>> row_begin, columns;
  for (BlockList& list : lists) {
    row_begin.push_back(std::move(list.row_begin));
    columns.push_back(std::move(list.columns));
  }
  return blocks(block, std::make_shared<const BlockLists>(make_block_lists("blocks", row_begin, columns)));
}

Pattern Pattern::blocks(std::int64_t block, std::shared_ptr<const BlockLists> lists) {
  check_block("blocks", block);
  if (!lists || lists->lists < 1) throw ValueError("[blocks] there is no list");
  PatternTerms::Term result = term_of(TermKind::listed, block);
  result.lists = std::move(lists);
  return Pattern(alone(std::move(result)));
}

Pattern Pattern::block_bitmap(std::int64_t block, std::int64_t key_blocks, const std::vector<bool>& bitmap) {
  check_block("block_bitmap", block);
  if (key_blocks < 1 || bitmap.size() % static_cast<std::size_t>(key_blocks) != 0)
    throw ValueError("[block_bitmap] " + std::to_string(bitmap.size()) + " blocks are not rows of " +
                     std::to_string(key_blocks));
  std::vector<std::int32_t> row_begin{0}, columns;
  for (std::size_t n = 0; n < bitmap.size(); ++n) {
    const auto column = static_cast<std::int64_t>(n) % key_blocks;
    if (bitmap[n]) columns.push_back(static_cast<std::int32_t>(column));
    if (column == key_blocks - 1) row_begin.push_back(static_cast<std::int32_t>(columns.size()));
  }
  return blocks(block, std::move(row_begin), std::move(columns));
}

}  // namespace poolgrad::attention
