#include "attention/pattern.h"

#include <gtest/gtest.h>

#include "allocator/error.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using testing_support::error_of;

TEST(Pattern, AdmitsWhatItsNameSays) {
  for (std::int64_t i = 0; i < 9; ++i)
    for (std::int64_t j = 0; j < 9; ++j) {
      EXPECT_EQ(Pattern::dense().multiplicity(i, j), 1);
      EXPECT_EQ(Pattern::causal().multiplicity(i, j), j <= i);
      EXPECT_EQ(Pattern::window(2, 1).multiplicity(i, j), i - 2 <= j && j <= i + 1);
      EXPECT_EQ(Pattern::window(Pattern::unbounded, 3).multiplicity(i, j), j <= i + 3);
    }
}

TEST(Pattern, CombinesByAnd) {
  EXPECT_EQ(Pattern::causal() & Pattern::window(3, 3), Pattern::window(3, 0));
  EXPECT_EQ(Pattern::dense() & Pattern::causal(), Pattern::causal());
  EXPECT_EQ(Pattern::window(5, 1) & Pattern::window(2, 4), Pattern::window(2, 1));
}

TEST(Pattern, ItsScheduleGivesEveryQueryTheRangeOfTheDefinition) {
  const Pattern patterns[] = {Pattern::dense(),
                              Pattern::causal(),
                              Pattern::window(2, 0),
                              Pattern::window(0, 3),
                              Pattern::window(Pattern::unbounded, 1),
                              Pattern::window(1, Pattern::unbounded)};
  for (const Pattern& pattern : patterns)
    for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left})
      for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{4, 4}, {3, 9}, {9, 3}, {5, 0}}) {
        const kernels::BandSchedule schedule = pattern.schedule(queries, keys, alignment);
        for (std::int64_t i = 0; i < queries; ++i) {
          const std::int64_t position = i + (alignment == Alignment::bottom_right ? keys - queries : 0);
          const auto [begin, end] = schedule.keys_of(i, keys);
          for (std::int64_t j = 0; j < keys; ++j)
            EXPECT_EQ(begin <= j && j < end, pattern.multiplicity(position, j) == 1)
                << pattern.to_string() << " query " << i << " of " << queries << ", key " << j << " of " << keys;
        }
      }
}

TEST(Pattern, SaysWhatItIs) {
  EXPECT_EQ(Pattern::dense().to_string(), "dense");
  EXPECT_EQ(Pattern::causal().to_string(), "causal");
  EXPECT_EQ(Pattern::window(255, 0).to_string(), "window(255, 0)");
  EXPECT_EQ(Pattern::window(Pattern::unbounded, 4).to_string(), "window(unbounded, 4)");
}

TEST(Pattern, RefusesNegativeBounds) {
  EXPECT_EQ(error_of<ValueError>([] { Pattern::window(-1, 2); }),
            "[window] bounds must not be negative: left -1, right 2");
}

}  // namespace
}  // namespace poolgrad::attention
