// The pictures of the gallery show their patterns and layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "examples/pattern_svg.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using attention::Pattern;
using ::testing::HasSubstr;
using testing_support::read_bytes;

TEST(Gallery, RectanglesCoverEachVisiblePairExactlyOnce) {
  for (const PatternPicture& picture : pattern_pictures())
    for (std::int64_t head = 0; head < picture.heads; ++head)
      for (const std::int64_t least : {1, 2}) {
        const std::int64_t n = picture.length;
        std::vector<int> covered(static_cast<std::size_t>(n * n));
        for (const auto& r : pattern_rectangles(picture.pattern, head, picture.heads, n, least))
          for (std::int64_t i = r.y; i < r.y + r.height; ++i)
            for (std::int64_t j = r.x; j < r.x + r.width; ++j) ++covered.at(static_cast<std::size_t>(i * n + j));
        for (std::int64_t i = 0; i < n; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            ASSERT_EQ(covered[static_cast<std::size_t>(i * n + j)],
                      picture.pattern.multiplicity(head, picture.heads, i, j) >= least)
                << picture.name << " head " << head << " at " << i << ", " << j;
      }
}

TEST(Gallery, AFullMatrixIsOneRectangleAndAnEmptyOneNone) {
  EXPECT_EQ(pattern_rectangles(Pattern::dense(), 0, 1, 40).size(), 1u);
  EXPECT_EQ(pattern_rectangles(Pattern::dense(), 0, 1, 40, 2).size(), 0u);
  EXPECT_EQ(pattern_rectangles(Pattern::dense(), 0, 1, 0).size(), 0u);
}

TEST(Gallery, PicturesAreSmallUniquelyNamedAndWellFormed) {
  std::set<std::string> names;
  for (const PatternPicture& picture : pattern_pictures()) {
    EXPECT_TRUE(names.insert(picture.name).second) << picture.name;
    const std::string svg = pattern_svg(picture);
    EXPECT_LT(svg.size(), 20'000u) << picture.name;
    EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << picture.name;
    EXPECT_TRUE(svg.ends_with("</svg>\n")) << picture.name;
    EXPECT_EQ(svg.find("& "), std::string::npos) << picture.name << " has an ampersand that XML does not allow";
  }
}

TEST(Gallery, TheLegendAppearsOnlyForPairsCountedTwice) {
  for (const PatternPicture& picture : pattern_pictures())
    EXPECT_EQ(pattern_svg(picture).find(">twice<") != std::string::npos, picture.name == "dilated") << picture.name;
}

TEST(Gallery, TheDocumentationHasTheCurrentPictures) {
  for (const PatternPicture& picture : pattern_pictures())
    EXPECT_EQ(read_bytes(POOLGRAD_PATTERN_FOLDER "/" + picture.name + ".svg"), pattern_svg(picture))
        << "draw again: pattern_gallery --output docs/patterns";
  EXPECT_EQ(read_bytes(POOLGRAD_PATTERN_FOLDER "/layouts.svg"), layouts_svg())
      << "draw again: pattern_gallery --output docs/patterns";
}

TEST(Gallery, LayoutsShowTheWorkOfEveryRankInEveryStep) {
  // 136 pairs: contiguous ranks have 10 to 58 of them, zigzag ranks 34 each, with equal shares in each later step.
  const std::string svg = layouts_svg();
  for (const char* const line : {"rank 0: 10, 0, 0, 0<", "rank 3: 10, 16, 16, 16<", "rank 0: 10, 8, 8, 8<",
                                 "rank 3: 10, 8, 8, 8<", "rank 0: 10, 6, 6, 6<", "rank 3: 10, 10, 10, 10<"})
    EXPECT_NE(svg.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace poolgrad::examples
