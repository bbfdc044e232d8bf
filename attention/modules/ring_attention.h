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
  /// With a communicator: operands are whole sequences, which this process attends to by itself, but in calls that say
  /// of how many positions they are a part (AttentionCall::whole).
  bool parts_are_told = false;
};

/// The ring of a module.
class ModuleRing {
 public:
  /// Throws ValueError for a ring_size below 1, or one that is not the communicator's (1 goes with any).
  explicit ModuleRing(const RingSetup& setup);

  int size() const;
  bool has_communicator() const { return setup_.communicator != nullptr; }
  /// Whether calls that say nothing else have whole sequences.
  bool has_whole() const { return !takes_parts(0); }
  /// Of a whole sequence of which the module is given `part`, where the call says `told`.
  std::int64_t whole_length(std::int64_t part, std::int64_t told) const;
  /// AttentionCore::positions(): those of this rank's part, where every call takes one.
  kernels::PositionMap positions(std::int64_t rows, std::int64_t keys) const;
  /// `pattern`, where this process holds whole sequences.
  std::optional<Pattern> of_one_process(const Pattern& pattern) const;
  /// One rank does it all where there are fewer queries than ranks in this process, as when a sequence is continued,
  /// and where keys are missing. `whole` as in AttentionCall.
  Tensor attend(const Pattern& pattern, const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options,
                std::int64_t whole = 0) const;
  /// What all calls so far have done, summed over the ranks of this process.
  const RingStatistics& statistics() const { return *statistics_; }

 private:
  /// Whether a call has this rank's part of sequences alone.
  bool takes_parts(std::int64_t told) const { return setup_.communicator && (told > 0 || !setup_.parts_are_told); }

  RingSetup setup_;
  std::shared_ptr<RingStatistics> statistics_ = std::make_shared<RingStatistics>();
};

/// A core, `Core`, whose sequences are those of a ring.
template <class Core>
class OnRing : public Core {
 public:
  bool continues() const override { return ring_.has_whole(); }
  bool divides_sequences() const override { return ring_.has_communicator(); }
  kernels::PositionMap positions(std::int64_t rows, std::int64_t keys) const override {
    return ring_.positions(rows, keys);
  }
  std::int64_t whole_length(std::int64_t part, std::int64_t told) const override {
    return ring_.whole_length(part, told);
  }
  const ModuleRing& ring() const { return ring_; }

 protected:
  template <class... Arguments>
  explicit OnRing(const RingSetup& ring, const Arguments&... core) : Core(core...), ring_(ring) {}

  ModuleRing ring_;
};

/// Any pattern over a ring: attend() for sequences that one device does not hold.
class RingAttention : public OnRing<AttentionCore> {
 public:
  explicit RingAttention(const Pattern& pattern = Pattern::dense(), const RingSetup& ring = {},
                         const CoreOptions& options = {});

  /// Throws ValueError for a bias where the ring has several ranks, and for sequences longer than the pattern's
  /// length().
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t, bool) const override { return ring_.of_one_process(pattern_); }
  bool looks_ahead(bool causal) const override { return pattern_.causally(causal).looks_ahead(); }

 private:
  Pattern pattern_;
};

// Dilated attention (LongNet) over a ring.

/// What ImprovedDilatedAttention computes, with the sequence divided among ranks. In the contiguous layout segments
/// that lie within a rank's chunk cost no message.
class RingDilatedAttention : public OnRing<DilatedCore> {
 public:
  /// Throws ValueError for what Pattern::dilated() and ModuleRing refuse.
  RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                       const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring = {},
                       const DilatedOptions& dilated = {}, const CoreOptions& options = {});

  /// Throws ValueError for a bias where the ring has several ranks.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t, bool) const override { return ring_.of_one_process(pattern()); }
};

// Block-sparse attention over a ring.

/// What BlockSparseDilatedAttention computes, with the sequence divided among ranks. Blocks are those of the whole
/// sequence and need not lie within a rank's part.
class BlockSparseRingDilatedAttention : public OnRing<BlockSparseDilatedAttention> {
 public:
  /// Throws ValueError for what BlockSparseDilatedAttention and ModuleRing refuse.
  explicit BlockSparseRingDilatedAttention(const SparsePatternConfig& sparse_config = {}, const RingSetup& ring = {},
                                           const CoreOptions& options = {},
                                           const std::vector<std::int64_t>& segment_lengths = {},
                                           const std::vector<std::int64_t>& dilation_rates = {});

  /// Throws ValueError for a bias where the ring has several ranks.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCall& call = {}) override;
  std::optional<Pattern> fixed_pattern(std::int64_t length, bool causal) const override {
    return ring_.of_one_process(pattern(length, causal));
  }
};

}  // namespace poolgrad::attention
