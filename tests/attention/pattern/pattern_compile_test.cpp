#include <gtest/gtest.h>

#include "attention/pattern/pattern.h"
#include "tests/attention/pattern/pattern_visits.h"

namespace poolgrad::attention {
namespace {

using kernels::PositionMap;
using testing_support::expect_means;
using testing_support::Multiplicity;
namespace definition = testing_support::definition;

/// Compares at several lengths and alignments, in tiles of several sizes.
void expect_means(const Pattern& pattern, const Multiplicity& expected, std::int64_t heads = 3) {
  struct Lengths {
    std::int64_t queries, keys, offset, limit;
  };
  for (const auto& [queries, keys, offset, limit] :
       {Lengths{64, 64, 0, 16}, {61, 100, 39, 37}, {61, 100, 0, 128}, {100, 61, -39, 16}, {1, 97, 96, 37}})
    expect_means(pattern, expected, heads, PositionMap::contiguous(queries, offset), PositionMap::contiguous(keys),
                 limit);
}

TEST(PatternCompile, Bands) {
  expect_means(Pattern::dense(), definition::window(Pattern::unbounded, Pattern::unbounded));
  expect_means(Pattern::causal(), definition::window(Pattern::unbounded, 0));
  expect_means(Pattern::window(5, 9), definition::window(5, 9));
  expect_means(Pattern::window(0, 0), definition::window(0, 0));
  expect_means(Pattern::window(Pattern::unbounded, 3) & Pattern::window(20, 20), definition::window(20, 3));
}

TEST(PatternCompile, Documents) {
  const std::vector<std::int64_t> bounds{0, 10, 10, 45, 46, 80}, others{0, 20, 45, 90};
  expect_means(Pattern::documents(bounds), definition::documents(bounds));
  expect_means(Pattern::documents(bounds) & Pattern::causal(),
               definition::both(definition::documents(bounds), definition::window(Pattern::unbounded, 0)));
  expect_means(Pattern::documents(bounds) & Pattern::documents(others),
               definition::both(definition::documents(bounds), definition::documents(others)));
  expect_means(Pattern::documents({0}), definition::documents({0}));
  // Blocks of two sizes; a run may cover fewer rows than a tile has.
  for (const std::int64_t size : {32, 48, 80})
    expect_means((Pattern::block_offsets(16, {-2, 0, 1}) | Pattern::block_offsets(size, {-1, 0, 1})) &
                     Pattern::documents(others),
                 definition::both(definition::either(definition::block_offsets(16, {{-2, 0, 1}}),
                                                     definition::block_offsets(size, {{-1, 0, 1}})),
                                  definition::documents(others)));
}

TEST(PatternCompile, Dilated) {
  const std::vector<std::vector<std::int64_t>> lengths{{16, 32, 64}, {8, 8, 64}, {12, 24},   {64, 16, 32}, {10, 7},
                                                       {200},        {64},       {5, 7, 11}, {16, 24}};
  const std::vector<std::vector<std::int64_t>> rates{{1, 2, 4}, {1, 2, 2}, {4, 6},     {4, 1, 2}, {4, 3},
                                                     {1},       {32},      {5, 7, 11}, {1, 2}};
  for (std::size_t n = 0; n < lengths.size(); ++n)
    for (const DilatedMode mode : {DilatedMode::longnet, DilatedMode::grouped})
      for (const DilatedOffset offset : {DilatedOffset::interleaved, DilatedOffset::contiguous})
        for (const bool unite : {false, true}) {
          const DilatedOptions options{mode, offset, unite, false};
          const Pattern pattern = Pattern::dilated(lengths[n], rates[n], options);
          expect_means(pattern, definition::dilated(lengths[n], rates[n], options));
          expect_means(pattern & Pattern::causal(), definition::both(definition::dilated(lengths[n], rates[n], options),
                                                                     definition::window(Pattern::unbounded, 0)));
        }
}

TEST(PatternCompile, BlockOffsets) {
  expect_means(Pattern::block_offsets(16, {-2, 3, 0}), definition::block_offsets(16, {{-2, 0, 3}}));
  expect_means(Pattern::block_offsets(16, {{0, 1}, {-1, -1, 2}}), definition::block_offsets(16, {{0, 1}, {-1, 2}}));
  expect_means(Pattern::dilated_sparse(16), definition::block_offsets(16, {{0, 1, -1, 2, -2, 4, -4}}));
  expect_means(Pattern::spaced_blocks(16, 2),
               definition::block_offsets(16, {{0, 2, -2, 4, -4, 6, -6, 8, -8, 10, -10}}));
  expect_means(
      Pattern::spaced_blocks(16, 3, 5) & Pattern::causal(),
      definition::both(definition::block_offsets(16, {{0, 3, -3}}), definition::window(Pattern::unbounded, 0)));
  expect_means(Pattern::local_window(16, 70), definition::block_offsets(16, {{-2, -1, 0, 1, 2}}));
}

TEST(PatternCompile, GlobalTokens) {
  expect_means(Pattern::sink_tokens(4), definition::global_tokens(4, false));
  expect_means(Pattern::sink_tokens(0), definition::global_tokens(0, false));
  expect_means(Pattern::global_tokens(19), definition::global_tokens(19, true));
  expect_means(Pattern::global_tokens(19) & Pattern::causal(),
               definition::both(definition::global_tokens(19, true), definition::window(Pattern::unbounded, 0)));
  expect_means(Pattern::global_local(16, 48, 7),
               definition::either(definition::block_offsets(16, {{-1, 0, 1}}), definition::global_tokens(7, true)));
  expect_means((Pattern::window(9, 0) | Pattern::sink_tokens(3)) & Pattern::causal(),
               definition::both(definition::either(definition::window(9, 0), definition::global_tokens(3, false)),
                                definition::window(Pattern::unbounded, 0)));
}

TEST(PatternCompile, StridedAndAxial) {
  for (const std::int64_t stride : {1, 2, 7, 16, 17, 40, 500}) {
    expect_means(Pattern::strided(stride), definition::strided(stride), 1);
    expect_means(Pattern::strided(stride) & Pattern::causal(),
                 definition::both(definition::strided(stride), definition::window(Pattern::unbounded, 0)), 1);
    expect_means(Pattern::axial(stride), definition::axial(stride), 1);
  }
}

TEST(PatternCompile, ListedBlocks) {
  const std::vector<std::vector<bool>> first{{true, false, false}, {true, true, true}, {}, {false, false, true}},
      second{{false, true}};
  const Pattern::BlockList lists[] = {{{0, 1, 4, 4, 5}, {0, 0, 1, 2, 2}}, {{0, 1}, {1}}};
  expect_means(Pattern::blocks(16, lists[0].row_begin, lists[0].columns), definition::blocks(16, {first}));
  expect_means(Pattern::blocks(16, {lists[0], lists[1]}), definition::blocks(16, {first, second}), 5);
  expect_means(Pattern::block_bitmap(16, 3, {true, false, false, true, true, true}),
               definition::blocks(16, {{{true, false, false}, {true, true, true}}}));
  expect_means(Pattern::blocks(16, {0}, {}), definition::blocks(16, {{}}));
}

TEST(PatternCompile, Unions) {
  const Pattern dilated = Pattern::dilated({16, 32}, {1, 2}), crossed = Pattern::dilated({12, 24}, {4, 6});
  const Multiplicity nested = definition::dilated({16, 32}, {1, 2}), plain = definition::dilated({12, 24}, {4, 6});
  const Multiplicity sinks = definition::global_tokens(5, false), window = definition::window(4, 7);
  expect_means(dilated | Pattern::sink_tokens(5), definition::either(nested, sinks));
  expect_means(crossed | Pattern::window(4, 7), definition::either(plain, window));
  expect_means(dilated | crossed, definition::either(nested, plain));
  expect_means(crossed | Pattern::axial(21), definition::either(plain, definition::axial(21)));
  expect_means(Pattern::dilated_sparse(16) | Pattern::strided(20) | Pattern::sink_tokens(5),
               definition::either(definition::either(definition::block_offsets(16, {{0, 1, -1, 2, -2, 4, -4}}),
                                                     definition::strided(20)),
                                  sinks));
  expect_means((Pattern::window(4, 7) & Pattern::causal()) | Pattern::sink_tokens(5),
               definition::either(definition::window(4, 0), sinks));
  expect_means(Pattern::blocks(16, {0, 1, 2}, {2, 1}) | Pattern::local_window(32, 0),
               definition::either(definition::blocks(16, {{{false, false, true}, {false, true}}}),
                                  definition::block_offsets(32, {{0}})));
}

TEST(PatternCompile, Sums) {
  const Multiplicity nested = definition::dilated({16, 32}, {1, 2});
  expect_means(Pattern::dense() + Pattern::causal(),
               definition::sum(definition::window(Pattern::unbounded, Pattern::unbounded),
                               definition::window(Pattern::unbounded, 0)));
  expect_means(Pattern::dilated({16, 32}, {1, 2}) + Pattern::sink_tokens(5) + Pattern::strided(33),
               definition::sum(definition::sum(nested, definition::global_tokens(5, false)), definition::strided(33)));
  expect_means(
      (Pattern::dilated({16, 32}, {1, 2}) + Pattern::window(2, 2)) | Pattern::sink_tokens(5),
      definition::either(definition::sum(nested, definition::window(2, 2)), definition::global_tokens(5, false)));
}

TEST(PatternCompile, DistantPositions) {
  // A chunk of a sequence of 2^40 positions, and the largest possible bounds.
  const std::int64_t start = (std::int64_t{1} << 40) - 13;
  const PositionMap queries = PositionMap::contiguous(90, start), keys = PositionMap::contiguous(70, start + 11);
  const std::int64_t far = std::int64_t{1} << 48;
  expect_means(Pattern::window(far, far), definition::window(far, far), 2, queries, keys, 37);
  expect_means(Pattern::dilated({16, 32, 64}, {1, 2, 4}), definition::dilated({16, 32, 64}, {1, 2, 4}), 4, queries,
               keys, 16);
  expect_means(Pattern::dilated({far, far}, {1, 3}), definition::dilated({far, far}, {1, 3}), 3, queries, keys, 16);
  expect_means(Pattern::dilated_sparse(16, {1, 1 << 20}),
               definition::block_offsets(16, {{0, 1, -1, 1 << 20, -(1 << 20)}}), 1, queries, keys, 16);
  expect_means(Pattern::strided(1000) | Pattern::sink_tokens(far),
               definition::either(definition::strided(1000), definition::global_tokens(far, false)), 1, queries, keys,
               37);
  expect_means(Pattern::axial(far), definition::axial(far), 1, queries, keys, 37);
  expect_means(Pattern::documents({0, start + 20, far}), definition::documents({0, start + 20, far}), 1, queries, keys,
               37);
}

TEST(PatternCompile, LargeModuliGetASeparatePass) {
  const PositionMap map = PositionMap::contiguous(300);
  EXPECT_EQ(Pattern::strided(8).compile(1, map, map).passes.size(), 1u);
  const auto passes = Pattern::strided(64).compile(1, map, map).passes;
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[0].modulus, 1);
  EXPECT_EQ(passes[1].modulus, 64);
  EXPECT_EQ(Pattern::dilated({16, 32, 64}, {1, 2, 4}).compile(1, map, map).passes.size(), 1u);
}

}  // namespace
}  // namespace poolgrad::attention
