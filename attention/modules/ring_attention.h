// Attention modules over a ring.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/modules/block_sparse_attention.h"
#include "attention/modules/dilated_attention.h"
#include "attention/ring/ring.h"

namespace poolgrad::attention {

/// How a module's ring comes about.
struct RingSetup {
  int ring_size = 1;  // ranks in this process, where no communicator is given
  Layout layout = Layout::contiguous;
  Exchange exchange = Exchange::ring;
  LocalGroup::Progress progress = LocalGroup::Progress::turns;
  std::vector<Device> devices = {};  // of the ranks in this process, in turn; none: where the operands are
  /// This process's end of a ring of processes. The module then takes and gives this rank's part of the sequence, which
  /// must divide by the ranks.
  std::shared_ptr<Communicator> communicator = {};
};

/// The ring of a module.
class ModuleRing {
 public:
  /// Throws ValueError for a ring_size below 1, or one that is not the communicator's (1 goes with any).
  explicit ModuleRing(const RingSetup& setup);

  int size() const;
  /// Of a whole sequence of which the module is given `part`.
  std::int64_t whole_length(std::int64_t part) const;
  /// `pattern`, where this process holds whole sequences.
  std::optional<Pattern> of_one_process(const Pattern& pattern) const;
  /// One rank does it all where there are fewer queries than ranks in this process, as when a sequence is continued,
  /// and where keys are missing.
  Tensor attend(const Pattern& pattern, const Tensor& q, const Tensor& k, const Tensor& v,
                const AttendOptions& options) const;
  /// What all calls so far have done, summed over the ranks of this process.
  const RingStatistics& statistics() const { return *statistics_; }

 private:
  RingSetup setup_;
  std::shared_ptr<RingStatistics> statistics_ = std::make_shared<RingStatistics>();
};

/// Any pattern over a ring: attend() for sequences that one device does not hold.
class RingAttention : public AttentionCore {
 public:
  explicit RingAttention(const Pattern& pattern = Pattern::dense(), const RingSetup& ring = {},
                         const CoreOptions& options = {});

  /// A bias is refused: ValueError.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t, bool) const override { return ring_.of_one_process(pattern_); }
  const ModuleRing& ring() const { return ring_; }

 private:
  Pattern pattern_;
  ModuleRing ring_;
};

// Dilated attention (LongNet) over a ring.

/// What ImprovedDilatedAttention computes, with the sequence divided among ranks. In the contiguous layout segments
/// that lie within a rank's chunk cost no message.
class RingDilatedAttention : public DilatedCore {
 public:
  /// Throws ValueError for what Pattern::dilated() and ModuleRing refuse.
  RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                       const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring = {},
                       const DilatedOptions& dilated = {}, const CoreOptions& options = {});

  /// A bias is refused: ValueError.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t, bool) const override { return ring_.of_one_process(pattern()); }
  const ModuleRing& ring() const { return ring_; }

 private:
  ModuleRing ring_;
};

// Block-sparse attention over a ring.

/// What BlockSparseDilatedAttention computes, with the sequence divided among ranks. Blocks are those of the whole
/// sequence and need not lie within a rank's part.
class BlockSparseRingDilatedAttention : public BlockSparseDilatedAttention {
 public:
  /// Throws ValueError for what BlockSparseDilatedAttention and ModuleRing refuse.
  explicit BlockSparseRingDilatedAttention(const SparsePatternConfig& sparse_config = {}, const RingSetup& ring = {},
                                           const CoreOptions& options = {},
                                           const std::vector<std::int64_t>& segment_lengths = {},
                                           const std::vector<std::int64_t>& dilation_rates = {});

  /// A bias is refused: ValueError.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t length, bool causal) const override {
    return ring_.of_one_process(pattern(length, causal));
  }
  const ModuleRing& ring() const { return ring_; }

 private:
  ModuleRing ring_;
};

}  // namespace poolgrad::attention
