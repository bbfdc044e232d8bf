// A pattern as a picture: which keys (to the right) each query (downwards) sees, and how often.
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

/// Where the multiplicity is `least` or more in the matrix of one head, for `length` queries and keys: runs of a row,
/// and equal runs of rows below each other put together. No pair is in two of them.
std::vector<PatternRectangle> pattern_rectangles(const attention::Pattern& pattern, std::int64_t head,
                                                 std::int64_t heads, std::int64_t length, std::int64_t least = 1);

struct PatternPicture {
  std::string name;   // of the file, without ".svg"
  std::string title;  // one line above
  attention::Pattern pattern;
  std::int64_t length = 32;
  std::int64_t heads = 1;  // panels side by side
};

/// The pattern, and the pattern & causal: side by side for one head, below each other for several.
std::string pattern_svg(const PatternPicture& picture);

/// One picture for each kind of pattern.
std::vector<PatternPicture> pattern_pictures();

/// The three layouts of a ring: which rank has which positions, and computes which pairs in which step.
std::string layouts_svg();

}  // namespace poolgrad::examples
