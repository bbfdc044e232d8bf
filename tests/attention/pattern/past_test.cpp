#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/pattern/pattern.h"

namespace poolgrad::attention {
namespace {

using Named = std::pair<std::string, Pattern>;

std::vector<Named> patterns_with_a_past() {
  const Pattern causal = Pattern::causal(), window = Pattern::window(11, 0);
  return {
      {"causal", causal},
      {"window", window},
      {"window and sinks", (window | Pattern::sink_tokens(3)) & causal},
      {"window and global tokens", (window | Pattern::global_tokens(5)) & causal},
      {"window and sinks in a wider window", (Pattern::window(2, 0) | Pattern::sink_tokens(4)) & window},
      {"the same beside another", ((Pattern::window(2, 0) | Pattern::sink_tokens(4)) & window) | Pattern::window(1, 0)},
      {"blocks and global tokens", Pattern::global_local(16, 32, 7) & causal},
      {"blocks and global tokens in a window", Pattern::global_local(16, 32, 12) & Pattern::window(40, 0)},
      {"documents", Pattern::documents({0, 13, 13, 50, 90}) & causal},
      {"window and sinks in documents",
       (window | Pattern::sink_tokens(20)) & Pattern::documents({0, 17, 60, 100}) & causal},
      {"dilated", Pattern::dilated({16, 48}, {1, 3}) & causal},
      {"grouped", Pattern::dilated({16, 48}, {1, 3}, {.mode = DilatedMode::grouped}) & causal},
      {"axial", Pattern::axial(12) & causal},
      {"strided", Pattern::strided(8) & causal},
      {"offsets", Pattern::block_offsets(16, {0, -1, -3}) & causal},
      {"offsets by head", Pattern::block_offsets(16, {std::vector<std::int64_t>{0}, {0, -2}}) & causal},
      {"spaced", Pattern::spaced_blocks(16, 2, 4) & causal},
      {"random", Pattern::random_blocks(16, 0.3, 4) & causal},
      {"listed", Pattern::blocks(16, {0, 1, 2, 4, 5, 5}, {0, 1, 1, 2, 2}) & causal},
      {"sum", (Pattern::dilated({16}, {1}) + Pattern::window(3, 3)) & causal}};
}

bool remembers(const Pattern::Past& past, std::int64_t key) { return key < past.first || key >= past.recent; }

TEST(PatternPast, KeepsEveryKeyThatLaterQueriesSee) {
  constexpr std::int64_t length = 100, heads = 4;
  for (const auto& [name, pattern] : patterns_with_a_past())
    for (std::int64_t position = 0; position <= length; ++position) {
      const Pattern::Past past = pattern.past(position);
      ASSERT_GE(past.recent, 0) << name;
      ASSERT_LE(past.recent, position) << name;
      ASSERT_TRUE(past.first == 0 || past.first < past.recent) << name;
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = position; i < length; ++i)
          for (std::int64_t j = 0; j < position; ++j)
            ASSERT_TRUE(remembers(past, j) || pattern.multiplicity(h, heads, i, j) == 0)
                << name << " at " << position << ": query " << i << ", key " << j;
    }
}

TEST(PatternPast, NeverNeedsADroppedKeyAgain) {
  for (const auto& [name, pattern] : patterns_with_a_past())
    for (std::int64_t position = 1; position <= 100; ++position)
      for (std::int64_t j = 0; j < position; ++j)
        ASSERT_TRUE(remembers(pattern.past(position), j) || !remembers(pattern.past(position + 1), j))
            << name << " at " << position << ": key " << j;
}

TEST(PatternPast, HasTheLengthOfEachPattern) {
  const auto kept = [](const Pattern& pattern, std::int64_t position) {
    const Pattern::Past past = (pattern & Pattern::causal()).past(position);
    return past.first + position - past.recent;
  };
  EXPECT_EQ(kept(Pattern::window(11, 0), 1000), 11);
  EXPECT_EQ(kept(Pattern::window(11, 0) | Pattern::sink_tokens(3), 1000), 14);
  EXPECT_EQ(kept(Pattern::global_local(16, 32, 7), 1000), 7 + 16 + 1000 % 16);
  EXPECT_EQ(kept(Pattern::documents({0, 10, 990, 2000}), 1000), 10);
  EXPECT_EQ(kept(Pattern::documents({0, 10, 990, 2000}), 990), 0) << "between two documents";
  EXPECT_EQ(kept(Pattern::documents({0, 10, 990}), 1000), 0) << "behind the last";
  EXPECT_EQ(kept(Pattern::sink_tokens(20) & Pattern::documents({0, 30, 2000}), 40), 0) << "of another document";
  EXPECT_EQ(kept((Pattern::window(11, 0) | Pattern::sink_tokens(20)) & Pattern::documents({0, 3, 2000}), 1000), 31)
      << "of a document that begins among the first keys";
  EXPECT_EQ(kept(Pattern::dilated({16, 48}, {1, 3}), 1000), 1000 % 48);
  EXPECT_EQ(kept(Pattern::dilated({16, 48}, {1, 3}), 960), 0);
  EXPECT_EQ(kept(Pattern::block_offsets(16, {0, -1, -3}), 1000), 48 + 1000 % 16);
  EXPECT_EQ(kept(Pattern::blocks(16, {0, 1, 2, 4}, {0, 1, 1, 2}), 40), 24);
  EXPECT_EQ(kept(Pattern::causal(), 1000), 1000);
  EXPECT_EQ(kept(Pattern::strided(8), 1000), 1000);
}

TEST(PatternPast, TellsWhetherAPatternLooksAhead) {
  const Pattern window = Pattern::window(11, 0), causal = Pattern::causal();
  const auto behind = [](std::int64_t least) {
    return [least](std::int64_t i, std::int64_t j) { return i - j >= least; };
  };
  const auto of_head = [](std::int64_t ahead) {  // for the second head alone
    return [ahead](std::int64_t h, std::int64_t i, std::int64_t j) { return j <= i + (h == 1 ? ahead : 0); };
  };
  for (const Pattern& pattern :
       {causal, window, window + window, window | (Pattern::sink_tokens(3) & causal),
        Pattern::dilated({16}, {2}) & causal, Pattern::where(100, behind(0)), Pattern::where(100, behind(3)) | window,
        Pattern::where(70, 3, of_head(-1)), Pattern::blocks(16, {0, 0, 1, 3}, {0, 0, 1})})
    EXPECT_FALSE(pattern.looks_ahead()) << pattern.to_string();
  for (const Pattern& pattern :
       {Pattern::dense(), Pattern::window(11, 1), Pattern::documents({0, 9}), window | Pattern::sink_tokens(3),
        Pattern::dilated({16}, {2}), Pattern::random_blocks(16, 0.5), Pattern::where(100, behind(-1)),
        Pattern::where(200, behind(-64)), window | Pattern::where(100, behind(-1)), Pattern::where(70, 3, of_head(2)),
        Pattern::blocks(16, {0, 1, 2}, {0, 0}), Pattern::blocks(16, {0, 1, 1}, {1})})
    EXPECT_TRUE(pattern.looks_ahead()) << pattern.to_string();
}

TEST(PatternLength, IsTheLengthOfTheLongestList) {
  const Pattern of_100 = Pattern::where(100, [](auto, auto) { return true; }),
                of_64 = Pattern::blocks(32, {0, 1, 1}, {1});
  EXPECT_EQ(of_100.length(), 100);
  EXPECT_EQ(of_64.length(), 64);
  EXPECT_EQ((of_64 | of_100).length(), 100);
  EXPECT_EQ((of_64 + of_100).length(), 100);
  EXPECT_EQ((of_100 & Pattern::causal()).length(), 100);
  for (const Pattern& pattern : {Pattern::dense(), Pattern::window(2, 0), of_100 | Pattern::sink_tokens(1),
                                 Pattern::documents({0, 9}), Pattern::dilated({16}, {2})})
    EXPECT_EQ(pattern.length(), Pattern::unbounded) << pattern.to_string();
}

}  // namespace
}  // namespace poolgrad::attention
