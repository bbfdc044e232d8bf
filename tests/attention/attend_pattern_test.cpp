// Every pattern compared with its definition pair by pair, in results and gradients. Covers full and causal patterns,
// equal and grouped heads, odd and prime lengths, and queries at the end of the keys or at their beginning.
#include <gtest/gtest.h>

#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::defined;
using testing_support::make_call;
using testing_support::Sizes;

// Equal heads, groups of three and of two, one key head for all, one head.
constexpr Sizes small_sizes[] = {{2, 1, 1, 4, 4, 3, 2},  {1, 2, 2, 6, 2, 4, 4}, {1, 7, 7, 4, 1, 8, 5},
                                 {1, 1, 61, 4, 2, 5, 5}, {1, 7, 2, 3, 3, 3, 3}, {1, 5, 0, 2, 1, 4, 4},
                                 {2, 0, 5, 2, 2, 4, 4},  {1, 3, 29, 5, 5, 2, 7}};
constexpr Sizes large_sizes[] = {
    {1, 61, 61, 4, 2, 5, 3}, {1, 131, 131, 3, 1, 4, 4}, {1, 17, 131, 4, 4, 3, 5}, {1, 83, 37, 2, 2, 4, 3}};

std::size_t calls = 0;

void expect_definition(const Case& one, const Sizes& sizes, Alignment alignment) {
  if (sizes.heads < one.least_heads) return;
  const testing_support::Threads threads(testing_support::one_or_many[calls++ % 2]);
  Call call = make_call(sizes);
  call.options.alignment = alignment;
  EXPECT_EQ(difference(attended(call, one.pattern), defined(call, one.m), 1e-12), "")
      << one.name << ", " << to_string(sizes) << (alignment == Alignment::top_left ? ", top left" : "");
}

/// Lengths, heads and alignments rotate, so that each case meets all of them over its two forms.
void expect_definitions(const std::string& part) {
  std::size_t turn = 0;
  for (const Case& one : testing_support::cases_with(part)) {
    for (const Sizes& sizes : small_sizes)
      for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left})
        expect_definition(one, sizes, alignment);
    for (const Sizes& sizes : large_sizes) {
      if (sizes.queries == sizes.keys) {
        expect_definition(one, sizes, Alignment::bottom_right);
      } else {
        expect_definition(one, sizes, turn++ / 2 % 2 ? Alignment::top_left : Alignment::bottom_right);
      }
    }
  }
}

TEST(AttendPattern, BandsFollowTheirDefinition) {
  for (const char* name : {"dense", "window(", "documents"}) expect_definitions(name);
}
TEST(AttendPattern, GlobalTokensFollowTheirDefinition) {
  for (const char* name : {"sink tokens", "global tokens", "global columns"}) expect_definitions(name);
}
TEST(AttendPattern, DilatedBranchesFollowTheirDefinition) { expect_definitions("dilated "); }
TEST(AttendPattern, BlocksFollowTheirDefinition) { expect_definitions("blocks "); }
TEST(AttendPattern, ProceduralPatternsAndCombinationsFollowTheirDefinition) {
  for (const char* name : {"strided", "axial", "dense twice", "+", ") & documents"}) expect_definitions(name);
}

/// multiplicity() of the pattern equals the definition's too.
TEST(AttendPattern, TakesTheCausalOption) {
  for (const Pattern& pattern : {Pattern::dense(), Pattern::window(9, 9), Pattern::dilated({8, 32}, {1, 2})}) {
    const Call by_pattern = make_call({1, 17, 37, 4, 2, 5, 3});
    Call by_option = by_pattern;
    by_option.options.causal = true;
    EXPECT_EQ(difference(attended(by_option, pattern), attended(by_pattern, pattern & Pattern::causal()), 0.0), "")
        << pattern.to_string();
  }
}

TEST(AttendPattern, MultiplicityFollowsTheDefinition) {
  for (const Case& one : testing_support::cases_with(""))
    for (std::int64_t h = 0; h < 5; ++h)
      for (std::int64_t i = -40; i < 140; i += 3)
        for (std::int64_t j = 0; j < 140; ++j)
          ASSERT_EQ(one.pattern.multiplicity(h, 5, i, j), one.m(h, 5, i, j))
              << one.name << ", head " << h << ", query at " << i << ", key at " << j;
}

}  // namespace
}  // namespace poolgrad::attention
