// Attention by a pattern: on one device, or over a ring of ranks that share every sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "attention/modules/attention_core.h"
#include "attention/pattern/pattern.h"
#include "attention/ring/ring.h"

namespace poolgrad::attention {

/// The configuration of a module's ring.
struct RingSetup {
  int ring_size = 1;  // ranks in this process, without a communicator
  Layout layout = Layout::contiguous;
  Exchange exchange = Exchange::ring;
  LocalGroup::Progress progress = LocalGroup::Progress::turns;
  std::vector<Device> devices = {};  // of the ranks in this process, in turn; none: the device of the operands
  /// This process's communicator in a ring of processes. The module then takes and returns this rank's part of the
  /// sequence, and the number of ranks must divide the length.
  std::shared_ptr<Communicator> communicator = {};
  /// With a communicator: operands are whole sequences, which this process handles alone. Only calls with
  /// AttendOptions::whole are for a part.
  bool parts_are_told = false;
};

/// attend() with a pattern, in one pass over all keys that a query sees. In the contiguous layout of a ring, segments
/// within a rank's chunk cost no message.
class PatternAttention : public AttentionCore {
 public:
  /// Returns the pattern for sequences of `length`; it need not be causal if `causal` is true.
  using PatternByLength = std::function<Pattern(std::int64_t length, bool causal)>;

  /// Throws ValueError for a ring_size below 1, or one that differs from the communicator's (1 is always allowed).
  /// `by_length` overrides `pattern`.
  explicit PatternAttention(const Pattern& pattern = Pattern::dense(), const RingSetup& ring = {},
                            const CoreOptions& options = {}, PatternByLength by_length = {});

  /// Throws ValueError for a bias with several ranks, and for sequences longer than the pattern's length(). One rank
  /// does everything if there are fewer queries than ranks in this process, as in a continued sequence, and if keys are
  /// missing.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}) override;

  /// Returns the pattern for `length` keys, without the causal mask.
  Pattern pattern(std::int64_t length = 0, bool causal = false) const;
  /// Returns the density: pairs of the pattern divided by all pairs, or causal by those with j <= i.
  double density(std::int64_t length, bool causal = false) const;
  /// Returns the ring's statistics of all calls, summed over the ranks of this process.
  const RingStatistics& statistics() const { return *statistics_; }

  void check_heads(std::int64_t heads) const override;
  std::optional<Pattern> fixed_pattern(std::int64_t length, bool causal) const override;
  bool looks_ahead(bool causal) const override;
  bool continues() const override { return has_whole(); }
  void check_continued(std::int64_t keys, std::int64_t longest) const override;
  bool divides_sequences() const override { return setup_.communicator != nullptr; }
  kernels::PositionMap positions(std::int64_t rows, std::int64_t keys) const override;
  std::int64_t whole_length(std::int64_t part, std::int64_t told) const override;

 private:
  int ranks() const { return setup_.communicator ? setup_.communicator->size() : setup_.ring_size; }
  /// Returns whether a call has only this rank's part of sequences.
  bool takes_parts(std::int64_t told) const { return setup_.communicator && (told > 0 || !setup_.parts_are_told); }
  /// Returns whether calls have whole sequences by default.
  bool has_whole() const { return !takes_parts(0); }

  Pattern pattern_;
  PatternByLength by_length_;
  RingSetup setup_;
  std::shared_ptr<RingStatistics> statistics_ = std::make_shared<RingStatistics>();
};

}  // namespace poolgrad::attention
