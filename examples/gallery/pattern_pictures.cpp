#include "examples/gallery/pattern_svg.h"

namespace poolgrad::examples {

using attention::DilatedMode;
using attention::Pattern;

std::vector<PatternPicture> pattern_pictures() {
  const auto window = Pattern::window(5, 5);
  const std::vector<std::int64_t> segments{8, 16, 32}, rates{1, 2, 4};
  std::vector<bool> listed(64);
  for (const std::size_t block : {0u, 3u, 9u, 8u, 18u, 20u, 27u, 25u, 36u, 32u, 45u, 42u, 54u, 49u, 63u, 56u, 60u})
    listed[block] = true;
  return {
      {"dense", "dense(): every pair, or what lies behind", Pattern::dense()},
      {"window", "window(5, 5): neighbours", window},
      {"documents", "documents({0, 9, 23, 32}): texts packed one after another", Pattern::documents({0, 9, 23, 32})},
      {"sink_tokens", "window(5, 5) | sink_tokens(3)", window | Pattern::sink_tokens(3)},
      {"global_tokens", "window(5, 5) | global_tokens(3)", window | Pattern::global_tokens(3)},
      {"dilated", "dilated({8, 16, 32}, {1, 2, 4}): every head runs every branch, at its own phase",
       Pattern::dilated(segments, rates), 32, 4},
      {"dilated_grouped", "dilated({8, 16, 32}, {1, 2, 4}), grouped: a branch for each group of heads",
       Pattern::dilated(segments, rates, {.mode = DilatedMode::grouped}), 32, 3},
      {"block_offsets", "block_offsets(16, {{0, -1, 1}, {0, -3, 3}}): head by head",
       Pattern::block_offsets(16, std::vector<std::vector<std::int64_t>>{{0, -1, 1}, {0, -3, 3}}), 128, 2},
      {"dilated_sparse", "dilated_sparse(16, {1, 2, 4})", Pattern::dilated_sparse(16, {1, 2, 4}), 128},
      {"local_window", "local_window(16, 64)", Pattern::local_window(16, 64), 128},
      {"global_local", "global_local(16, 64, 16)", Pattern::global_local(16, 64, 16), 128},
      {"strided", "strided(6): the last six, and every sixth before", Pattern::strided(6), 36},
      {"axial", "axial(6): row and column of a grid", Pattern::axial(6), 36},
      {"random_blocks", "random_blocks(16, 0.25): by a hash, the diagonal always", Pattern::random_blocks(16, 0.25),
       128, 4},
      {"blocks", "block_bitmap(16, 8, ...): listed blocks", Pattern::block_bitmap(16, 8, listed), 128},
  };
}

}  // namespace poolgrad::examples
