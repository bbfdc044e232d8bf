// A tile of rows in one head: what strips are made for.
#pragma once

#include "kernels/attention_term.h"

namespace poolgrad::kernels {

struct TileOfHead {
  Progression rows;
  std::int64_t h, heads;
  bool flipped;   // rows are keys, and what they visit are queries
  Interval keys;  // between these positions lies everything that can be visited
};

}  // namespace poolgrad::kernels
