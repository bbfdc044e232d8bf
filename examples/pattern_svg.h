// Draws a pattern: the keys (to the right) that each query (downwards) sees, and their multiplicities.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/pattern/pattern.h"

namespace poolgrad::examples {

/// Keys [x, x + width), queries [y, y + height).
struct PatternRectangle {
  std::int64_t x = 0, y = 0, width = 0, height = 0;
};

/// The regions where the multiplicity is at least `least` in one head's matrix of `length` queries and keys. Rectangles
/// merge equal runs of consecutive rows and do not overlap.
std::vector<PatternRectangle> pattern_rectangles(const attention::Pattern& pattern, std::int64_t head,
                                                 std::int64_t heads, std::int64_t length, std::int64_t least = 1);

struct PatternPicture {
  std::string name;   // of the file, without ".svg"
  std::string title;  // one line above
  attention::Pattern pattern;
  std::int64_t length = 32;
  std::int64_t heads = 1;  // panels side by side
};

/// The pattern, and the pattern & causal: side by side for one head, stacked for several.
std::string pattern_svg(const PatternPicture& picture);

/// One picture for each kind of pattern.
std::vector<PatternPicture> pattern_pictures();

/// The three layouts of a ring: positions of each rank, and the pairs it computes in each step.
std::string layouts_svg();

}  // namespace poolgrad::examples
