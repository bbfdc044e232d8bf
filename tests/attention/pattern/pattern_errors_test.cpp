#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;

TEST(PatternErrors, Windows) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::window(-1, 2); }),
            "[window] bounds must not be negative: left -1, right 2");
}

TEST(PatternErrors, Documents) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::documents({}); }),
            "[documents] cu_seqlens must begin with 0: it is empty");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::documents({3, 4});
            }),
            "[documents] cu_seqlens must begin with 0: it begins with 3");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::documents({0, 9, 4}); }), "[documents] cu_seqlens decreases: 9, 4");
}

TEST(PatternErrors, Dilated) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::dilated({}, {}); }),
            "[dilated] there is no branch: segment lengths (), dilation rates ()");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::dilated({8, 16}, {1});
            }),
            "[dilated] there must be as many segment lengths as dilation rates: segment lengths (8, 16), dilation "
            "rates (1)");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::dilated({8, 0}, {1, 1});
            }),
            "[dilated] segment lengths and dilation rates must be positive: segment lengths (8, 0), dilation rates "
            "(1, 1)");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::dilated({8}, {-2}); }),
            "[dilated] segment lengths and dilation rates must be positive: segment lengths (8), dilation rates (-2)");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::dilated({4}, {8}); }),
            "[dilated] a dilation rate is larger than its segment: segment lengths "
            "(4), dilation rates (8)");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::dilated({(std::int64_t{1} << 48) + 1}, {1}); }),
            "[dilated] a segment is too long: segment lengths (281474976710657), dilation rates (1)");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::dilated(std::vector<std::int64_t>(17, 4), std::vector<std::int64_t>(17, 1));
            }).substr(0, 44),
            "[dilated] there are more than 16 branches: s");
}

TEST(PatternErrors, GroupsOfHeads) {
  const Pattern pattern = Pattern::dilated({8, 16, 32}, {1, 2, 4}, {.mode = DilatedMode::grouped});
  const auto map = kernels::PositionMap::contiguous(64);
  EXPECT_EQ(error_of<ValueError>([&] { pattern.compile(2, map, map); }),
            "[dilated] in grouped mode every branch needs a head: 2 heads, 3 branches");
  EXPECT_EQ(pattern.compile(3, map, map).passes.size(), 1u);
}

TEST(PatternErrors, NoHeads) {
  const Pattern contiguous = Pattern::dilated({8, 16}, {1, 2}, {.offset = DilatedOffset::contiguous});
  const auto map = kernels::PositionMap::contiguous(64);
  EXPECT_EQ(error_of<ValueError>([&] { contiguous.compile(0, map, map); }),
            "[dilated] contiguous offsets need at least one head");
  for (const Pattern& pattern : {contiguous, Pattern::causal(), Pattern::random_blocks(16, 0.5)}) {
    EXPECT_EQ(error_of<ValueError>([&] { pattern.density(0, 64, 64); }), "[density] needs at least one head: 0");
    EXPECT_EQ(error_of<ValueError>([&] { pattern.multiplicity(0, 0, 1, 1); }),
              "[multiplicity] there is no head 0 of 0 heads");
  }
  EXPECT_EQ(error_of<ValueError>([&] { contiguous.multiplicity(2, 2, 1, 1); }),
            "[multiplicity] there is no head 2 of 2 heads");
}

TEST(PatternErrors, IndivisibleLengths) {
  const Pattern pattern = Pattern::dilated({256, 512}, {1, 2}, {.require_divisible = true});
  pattern.check_length(1024);
  pattern.check_length(0);
  EXPECT_EQ(error_of<ValueError>([&] { pattern.check_length(1000); }),
            "[dilated] length 1000 is not a multiple of the longest segment 512; the next multiple is: 1024");
  EXPECT_EQ(error_of<ValueError>([&] { (pattern | Pattern::sink_tokens(4)).check_length(513); }),
            "[dilated] length 513 is not a multiple of the longest segment 512; the next multiple is: 1024");
  const Pattern none = pattern | Pattern::dense();  // every pair, but only at the lengths that one operand requires
  for (const Pattern& both :
       {none & Pattern::dilated({8}, {1}), Pattern::causal() & pattern, pattern & Pattern::causal()})
    EXPECT_THROW(both.check_length(1000), ValueError);
  Pattern::dilated({256, 512}, {1, 2}).check_length(1000);
  Pattern::causal().check_length(1000);
}

TEST(PatternErrors, Blocks) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::block_offsets(24, std::vector<std::int64_t>{0}); }),
            "[block_offsets] block must be a positive multiple of 16, at most 2^30: 24");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::dilated_sparse(0); }),
            "[block_offsets] block must be a positive multiple of 16, at most 2^30: 0");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::dilated_sparse(16, {1, 0});
            }),
            "[dilated_sparse] rates must be positive: 0");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::spaced_blocks(16, 0); }).substr(0, 52),
            "[spaced_blocks] the step must be at least 1 and the ");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::block_offsets(16, std::vector<std::int64_t>{}); }),
            "[block_offsets] list 0 has no offset");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::block_offsets(16, std::vector<std::vector<std::int64_t>>{}); }),
            "[block_offsets] there must be 1 to 8 lists: 0");
  std::vector<std::int64_t> apart;
  for (std::int64_t n = 0; n < 33; ++n) apart.push_back(2 * n);
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::block_offsets(16, apart); }),
            "[block_offsets] there are more than 32 runs of neighbouring offsets");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::block_offsets(16, std::vector<std::int64_t>{std::int64_t{1} << 40}); }),
            "[block_offsets] an offset is out of range: 1099511627776");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::local_window(16, -1); }),
            "[local_window] the window is out of range: -1");
  // 2^30 blocks, and one more, on either side.
  EXPECT_EQ(Pattern::local_window(16, std::int64_t{1} << 35), Pattern::spaced_blocks(16, 1));
  EXPECT_EQ(error_of<ValueError>([] { Pattern::local_window(16, (std::int64_t{1} << 35) + 32); }),
            "[local_window] the window is out of range: 34359738400");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::local_window(16, std::int64_t{1} << 50); }),
            "[local_window] the window is out of range: 1125899906842624");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::spaced_blocks(16, 2, (std::int64_t{1} << 30) + 1); }),
            "[spaced_blocks] the reach must be unbounded or at most 2^30 blocks: 1073741825");
}

TEST(PatternErrors, Lists) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::blocks(16, std::vector<Pattern::BlockList>{}); }),
            "[blocks] there is no list");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::blocks(16, {}, {}); }),
            "[blocks] list 0: row_begin does not begin with 0");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::blocks(16, {0, 2, 1}, {0});
            }),
            "[blocks] list 0: row_begin decreases: 2, 1 at row 1");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::blocks(16, {0, 2}, {0});
            }),
            "[blocks] list 0: row_begin ends at 2, but there are 1 columns");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::blocks(16, {0, 2}, {3, 3});
            }),
            "[blocks] list 0: the columns of row 0 must ascend from 0: 3 after 3");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::blocks(16, {0, 1}, {-1});
            }),
            "[blocks] list 0: the columns of row 0 must ascend from 0: -1");
  EXPECT_EQ(error_of<ValueError>([] {
              Pattern::block_bitmap(16, 3, {true, true});
            }),
            "[block_bitmap] 2 blocks are not rows of 3");
}

TEST(PatternErrors, Functions) {
  const auto all = [](std::int64_t, std::int64_t) { return true; };
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::where(0, all); }), "[where] the length must be from 1 to 2^31: 0");
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::where(8, 0, [](auto, auto, auto) { return true; }); }),
            "[where] needs at least one head: 0");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::where(8, std::function<bool(std::int64_t, std::int64_t)>()); }),
            "[where] the function is empty");
  const auto none = [](std::int64_t, std::int64_t, std::span<std::uint64_t>) {};
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::where(0, 8, 1, none); }),
            "[where] the length must be from 1 to 2^31: 0");
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::where(8, (std::int64_t{1} << 31) + 1, 1, none); }),
            "[where] the length must be from 1 to 2^31: 2147483649");
  EXPECT_EQ(error_of<ValueError>([&] { Pattern::where(8, 8, 0, none); }), "[where] needs at least one head: 0");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::where(8, [](auto, auto) -> bool { throw ValueError("[mine] no"); }); }),
            "[mine] no");
}

TEST(PatternErrors, Densities) {
  for (const double density : {0.0, -0.5, 1.5})
    EXPECT_EQ(error_of<ValueError>([&] { Pattern::random_blocks(16, density); }),
              "[random_blocks] density must be in (0, 1]: " + std::to_string(density));
  EXPECT_EQ(error_of<ValueError>([] { Pattern::random_blocks(16, std::nan("")); }),
            "[random_blocks] density must be in (0, 1]: nan");
}

TEST(PatternErrors, Sizes) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::sink_tokens(-1); }),
            "[sink_tokens] the number of tokens is out of range: -1");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::global_tokens(-1); }),
            "[global_tokens] the number of tokens is out of range: -1");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::strided(0); }), "[strided] the stride is out of range: 0");
  EXPECT_EQ(error_of<ValueError>([] { Pattern::axial(-3); }), "[axial] the width is out of range: -3");
}

TEST(PatternErrors, UnsupportedCombinations) {
  const Pattern sinks = Pattern::sink_tokens(2), sparse = Pattern::dilated_sparse(16);
  EXPECT_EQ(error_of<ValueError>([&] { return sinks & sparse; }),
            "[pattern] one side of & must be made of dense, causal, window and documents: columns(2) and "
            "block_offsets(16: -4 -2..2 4)");
  EXPECT_EQ(error_of<ValueError>([&] {
              return (sinks & Pattern::documents({0, 9})) | sparse;
            }),
            "[pattern] documents apply to a whole pattern, by &; the sides of | differ in them: columns(2) & "
            "documents(1) and block_offsets(16: -4 -2..2 4)");
  EXPECT_EQ(
      error_of<ValueError>([&] { return (Pattern::global_tokens(2) | sparse) | Pattern::axial(5); }).substr(0, 43),
      "[pattern] a union has at most 4 terms: colu");
}

}  // namespace
}  // namespace poolgrad::attention
