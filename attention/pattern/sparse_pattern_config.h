// Block-sparse patterns by kind and density.
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
  /// The density: the fraction of admissible pairs that are kept, in (0, 1]; 1 is Pattern::dense(). If given, it
  /// determines the pattern for a length, and density() reports the result. local_window and global_local take the
  /// widest window whose density() does not exceed it, global tokens included; at least a position's own block. strided
  /// and axial take the smallest stride or width whose density does not exceed it. That density falls up to about the
  /// root of the length, so a lower target gives about the lowest possible. dilated_sparse takes as many offsets, in
  /// blocks, as fit, doubles the largest rate for more, and fills the rest with random blocks. random keeps each block
  /// with this probability.
  std::optional<double> sparsity_ratio = std::nullopt;
  std::int64_t window_size = 256;                     // local_window, global_local: positions, half on either side
  std::int64_t global_tokens = 1;                     // global_local: first positions, which see and are seen by all
  std::vector<std::int64_t> dilation_rates{1, 2, 4};  // dilated_sparse: offsets in blocks, up to 2^30
  std::int64_t stride = 128;                          // strided: stride; axial: columns
  std::uint64_t seed = 0;                             // random blocks

  /// Throws ValueError, one sentence, for block size, density, window, rates or stride.
  void validate() const;
  /// Returns the pattern for sequences of `length`, without the causal mask. The length and `causal` matter only with
  /// sparsity_ratio, and for random, whose default density is 0.1. Throws the errors of validate().
  Pattern pattern(std::int64_t length, bool causal = false) const;
  /// Returns whether pattern() may depend on the length.
  bool follows_length() const;
  /// Returns the pairs that pattern(length, causal) admits, divided by all pairs, or causal by those with j <= i.
  double density(std::int64_t length, bool causal = false) const;
};

}  // namespace poolgrad::attention
