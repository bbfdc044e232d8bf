// Which keys a query sees. A pattern gives every pair of absolute positions a multiplicity; patterns are combined by
// AND. docs/attention.md has the definition.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/attention.h"

namespace poolgrad::attention {

/// Where query positions begin: the last query at the last key (decoding, causal training), or the first at the first.
enum class Alignment { bottom_right, top_left };

/// A value type. Position i of a query is its index plus Nk - Nq (bottom_right) or plus 0 (top_left); position j of a
/// key is its index.
class Pattern {
 public:
  static constexpr std::int64_t unbounded = kernels::AttentionSchedule::unbounded;

  /// Every pair.
  static Pattern dense();
  /// Keys up to the query's own position.
  static Pattern causal();
  /// Keys with -left <= j - i <= right; either bound may be `unbounded`. Throws ValueError for a negative bound.
  static Pattern window(std::int64_t left, std::int64_t right);

  /// Pairs that both admit.
  friend Pattern operator&(const Pattern& a, const Pattern& b);
  friend bool operator==(const Pattern&, const Pattern&) = default;

  /// The definition: how often the key at position j counts for the query at position i. 0 or 1 for the patterns here.
  std::int64_t multiplicity(std::int64_t i, std::int64_t j) const;
  /// What the kernels run for `queries` x `keys` under an alignment.
  kernels::AttentionSchedule schedule(std::int64_t queries, std::int64_t keys, Alignment alignment) const;
  /// "dense", "causal", "window(255, 0)".
  std::string to_string() const;

 private:
  Pattern(std::int64_t left, std::int64_t right) : left_(left), right_(right) {}

  std::int64_t left_, right_;
};

}  // namespace poolgrad::attention
