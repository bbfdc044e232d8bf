// What the dilated modules share: branches, their checks, and the pattern that they stand for.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention_core.h"
#include "attention/pattern.h"

namespace poolgrad::attention {

class DilatedCore : public AttentionCore {
 public:
  /// grouped: at least one head for each branch. ValueError.
  void check_heads(std::int64_t heads) const override;
  const Pattern& pattern() const { return pattern_; }

 protected:
  /// Throws ValueError for what Pattern::dilated() refuses. `always_pooled` as in choose_memory_mode().
  DilatedCore(const std::vector<std::int64_t>& segment_lengths, const std::vector<std::int64_t>& dilation_rates,
              const DilatedOptions& dilated, const CoreOptions& options, bool always_pooled = false);

  std::vector<std::int64_t> segment_lengths_, dilation_rates_;
  DilatedOptions dilated_;

 private:
  Pattern pattern_;
};

}  // namespace poolgrad::attention
