// Block-sparse patterns by kind, and by how dense they shall be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attention/pattern/pattern.h"

namespace poolgrad::attention {

enum class SparsePatternType { local_window, dilated_sparse, global_local, strided, axial, random };

struct SparsePatternConfig {
  SparsePatternType pattern_type = SparsePatternType::local_window;
  std::int64_t block_size = 64;  // positions; a multiple of 16
  /// The density: the fraction of admissible pairs that are kept, in (0, 1]; 1 is Pattern::dense(). Where given, it
  /// determines the pattern for a length. local_window and global_local have the widest window with which density() is
  /// not above it, global tokens included, or no window beyond a position's own block; the stride of strided and the
  /// width of axial are the smallest whose density, which falls up to about the root of the length, is not above it (or
  /// about the smallest there is);
  /// dilated_sparse has as many offsets, counted in blocks, goes on doubling the largest rate, and fills up with random
  /// blocks what no further offset can give; random keeps each block with this probability. density() reports what came
  /// of it.
  std::optional<double> sparsity_ratio = std::nullopt;
  std::int64_t window_size = 256;                     // local_window, global_local: positions, half on either side
  std::int64_t global_tokens = 1;                     // global_local: first positions that see and are seen by all
  std::vector<std::int64_t> dilation_rates{1, 2, 4};  // dilated_sparse: offsets in blocks, up to 2^30
  std::int64_t stride = 128;                          // strided: stride; axial: columns
  std::uint64_t seed = 0;                             // random blocks

  /// ValueError, one sentence: block size, density, window, rates, stride.
  void validate() const;
  /// The pattern for sequences of `length`; the length, and whether it will be used causally, matter only where
  /// sparsity_ratio is given (or random, whose density is then 0.1). Not itself causal. ValueError as validate().
  Pattern pattern(std::int64_t length, bool causal = false) const;
  /// Whether pattern() may differ from length to length.
  bool follows_length() const;
  /// Pairs that pattern(length, causal) admits, over all or, causal, over those with j <= i.
  double density(std::int64_t length, bool causal = false) const;
};

}  // namespace poolgrad::attention
