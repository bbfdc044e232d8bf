// Random patterns on random shards of positions, compared with definitions composed in the same way.
#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "tests/attention/pattern/pattern_visits.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using kernels::PositionMap;
using testing_support::expect_means;
using testing_support::Multiplicity;
namespace definition = testing_support::definition;

struct Meaning {
  Pattern pattern;
  Multiplicity multiplicity;
};

class RandomPatterns {
 public:
  explicit RandomPatterns(std::uint64_t seed) : random_(seed) {}

  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  bool sometimes() { return below(2) == 0; }

  Meaning band() {
    const std::int64_t left = sometimes() ? Pattern::unbounded : below(70);
    const std::int64_t right = sometimes() ? Pattern::unbounded : sometimes() ? 0 : below(70);
    return {Pattern::window(left, right), definition::window(left, right)};
  }

  Meaning leaf() {
    switch (below(10)) {
      case 0: return band();
      case 1: {
        const std::int64_t count = below(30);
        const bool rows = sometimes();
        return {Pattern::global_tokens(count, rows), definition::global_tokens(count, rows)};
      }
      case 2:
      case 3: return dilated();
      case 4: {
        std::vector<std::vector<std::int64_t>> lists(static_cast<std::size_t>(1 + below(3)));
        for (auto& list : lists)
          for (std::int64_t n = below(5); n >= 0; --n) list.push_back(below(9) - 4);
        const std::int64_t block = 16 * (1 + below(2));
        return {Pattern::block_offsets(block, lists), definition::block_offsets(block, lists)};
      }
      case 5: {
        const std::int64_t stride = 1 + below(45);
        return {Pattern::strided(stride), definition::strided(stride)};
      }
      case 6: {
        const std::int64_t width = 1 + below(45);
        return {Pattern::axial(width), definition::axial(width)};
      }
      case 7: {
        // The definition uses the pattern's own hash: this tests that the visits match its multiplicity.
        const Pattern pattern = Pattern::random_blocks(16, 0.2 + 0.1 * static_cast<double>(below(9)), random_());
        return {pattern, [=](auto h, auto heads, auto i, auto j) { return pattern.multiplicity(h, heads, i, j); }};
      }
      case 8: {
        const std::int64_t length = 1 + below(150), heads = 1 + below(2), part = 1 + below(6), wide = below(70);
        const auto sees = [=](std::int64_t h, std::int64_t i, std::int64_t j) {
          return (3 * i + j * (h + 1)) % part == 0 || (i < wide && j < wide + 30 * h);
        };
        return {Pattern::where(length, heads, sees), [=](auto h, auto, std::int64_t i, std::int64_t j) {
                  const bool within = 0 <= i && i < length && 0 <= j && j < length;
                  return std::int64_t{within && sees(h % heads, i, j)};
                }};
      }
      default: return listed();
    }
  }

  Meaning dilated() {
    std::vector<std::int64_t> w, r;
    if (sometimes()) {  // a chain
      std::int64_t length = 4 * (1 + below(4)), rate = 1 + below(2);
      for (std::int64_t n = below(4); n >= 0; --n) {
        w.push_back(length);
        r.push_back(rate);
        length *= 1 + below(3);
        rate *= length % (2 * rate) == 0 ? 1 + below(2) : 1;
      }
    } else {
      for (std::int64_t n = below(4); n >= 0; --n) {
        w.push_back(1 + below(60));
        r.push_back(1 + below(std::min<std::int64_t>(w.back(), 9)));
      }
    }
    DilatedOptions options;
    if (below(4) == 0) options.mode = DilatedMode::grouped;
    if (below(4) == 0) options.offset = DilatedOffset::contiguous;
    options.unite = below(4) == 0;
    return {Pattern::dilated(w, r, options), definition::dilated(w, r, options)};
  }

  Meaning listed() {
    std::vector<std::vector<std::vector<bool>>> bitmaps(static_cast<std::size_t>(1 + below(2)));
    std::vector<Pattern::BlockList> lists;
    for (auto& bitmap : bitmaps) {
      Pattern::BlockList list{{0}, {}};
      bitmap.resize(static_cast<std::size_t>(below(7)));
      for (auto& row : bitmap) {
        row.resize(static_cast<std::size_t>(below(8)));
        for (std::size_t c = 0; c < row.size(); ++c) {
          row[c] = sometimes();
          if (row[c]) list.columns.push_back(static_cast<std::int32_t>(c));
        }
        list.row_begin.push_back(static_cast<std::int32_t>(list.columns.size()));
      }
      lists.push_back(std::move(list));
    }
    return {Pattern::blocks(16, std::move(lists)), definition::blocks(16, bitmaps)};
  }

  /// Sums and unions of up to four leaves, some with bands.
  Meaning composition() {
    Meaning whole = leaf();
    for (std::int64_t n = below(4); n > 0; --n) {
      Meaning other = leaf();
      if (below(3) == 0) other = both(other, band());
      if (below(4) == 0) whole = both(whole, band());
      if (sometimes()) {
        try {
          whole = {whole.pattern | other.pattern, definition::either(whole.multiplicity, other.multiplicity)};
        } catch (const ValueError&) {  // more than four terms
          whole = {whole.pattern + other.pattern, definition::sum(whole.multiplicity, other.multiplicity)};
        }
      } else {
        whole = {whole.pattern + other.pattern, definition::sum(whole.multiplicity, other.multiplicity)};
      }
    }
    if (sometimes()) whole = both(whole, band());
    if (below(4) == 0) {
      std::vector<std::int64_t> bounds{0};
      for (std::int64_t n = below(5); n > 0; --n) bounds.push_back(bounds.back() + below(60));
      whole = both(whole, {Pattern::documents(bounds), definition::documents(bounds)});
    }
    return whole;
  }

  /// A sequence or a shard: contiguous, two chunks, striped.
  PositionMap positions(bool negative) {
    const std::int64_t count = below(90), offset = below(80) - (negative ? 40 : 0);
    switch (below(3)) {
      case 0: return PositionMap::contiguous(count, offset);
      case 1: {
        const std::int64_t split = below(count + 1);
        return {count, split, offset, offset + split + below(60), 1};
      }
      default: {
        const std::int64_t stride = 1 + below(4);
        return {count, count, offset, offset + count * stride, stride};
      }
    }
  }

 private:
  static Meaning both(const Meaning& a, const Meaning& b) {
    return {a.pattern & b.pattern, definition::both(a.multiplicity, b.multiplicity)};
  }

  std::mt19937_64 random_;
};

TEST(PatternFuzz, RandomPatternsFollowTheirDefinitions) {
  const std::uint64_t seed = test_seed();
  for (std::uint64_t round = 0; round < 250 && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    RandomPatterns random(seed + round);
    const Meaning meaning = random.composition();
    const std::int64_t heads = 4 + random.below(3), limits[] = {1, 16, 37, 128};
    const PositionMap queries = random.positions(true), keys = random.positions(false);
    expect_means(meaning.pattern, meaning.multiplicity, heads, queries, keys, limits[random.below(4)]);
  }
}

}  // namespace
}  // namespace poolgrad::attention
