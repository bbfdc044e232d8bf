// Patterns: which keys a query sees, and how many times. A pattern gives every pair of absolute positions and every
// head a multiplicity m_h(i, j) >= 0. docs/reference/attention.md has the definition; this header lists the patterns.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/schedule/attention_schedule.h"

namespace poolgrad::attention {

/// The position of queries: the last query at the last key (decoding, causal training), or the first at the first.
enum class Alignment { bottom_right, top_left };

/// longnet: every head runs every branch. grouped: head h runs only branch group(h). Heads form as many consecutive
/// groups as there are branches; the first (heads mod groups) groups are one head larger.
enum class DilatedMode { longnet, grouped };

/// The residue of a branch that a head takes. interleaved: h mod r (LongNet). contiguous: floor(h / ceil(H / r))
/// (torchscale). Grouped mode takes the group's index mod r instead.
enum class DilatedOffset { interleaved, contiguous };

struct DilatedOptions {
  DilatedMode mode = DilatedMode::longnet;
  DilatedOffset offset = DilatedOffset::interleaved;
  bool unite = false;              // a pair of several branches counts once
  bool require_divisible = false;  // refuse lengths that are not a multiple of the longest segment
};

struct PatternTerms;  // attention/pattern/terms.h

/// A value type, cheap to copy. Positions are absolute, so results depend neither on tiling nor on sharding. A key's
/// position is its index; a query's is its index plus Nk - Nq (bottom_right) or plus 0 (top_left).
///
/// a & b admits the pairs that both admit (multiplicities multiply). At least one side must consist of dense, causal,
/// window and documents only, else it throws ValueError. a | b counts each pair of either once. a + b adds
/// multiplicities.
class Pattern {
 public:
  static constexpr std::int64_t unbounded = kernels::unbounded;

  /// Every pair.
  static Pattern dense();
  /// Keys up to the query's own position.
  static Pattern causal();
  /// Keys with -left <= j - i <= right; either bound may be `unbounded`. Throws ValueError for a negative bound.
  static Pattern window(std::int64_t left, std::int64_t right);
  /// Pairs of the same document; document d is the positions [cu_seqlens[d], cu_seqlens[d + 1]). Positions outside all
  /// documents see nothing and are not seen. Throws ValueError unless cu_seqlens starts at 0 and never decreases.
  static Pattern documents(std::vector<std::int64_t> cu_seqlens);

  /// Keys j < count: attention sinks (Xiao et al. 2023).
  static Pattern sink_tokens(std::int64_t count);
  /// Keys j < count, and with `rows` all keys for queries i < count (Longformer, BigBird).
  static Pattern global_tokens(std::int64_t count, bool rows = true);
  /// Sum over branches b of [same segment of length w_b][both positions in it = phase mod r_b] (LongNet, Ding et al.
  /// 2023); the phase is a function of the head. Throws ValueError for empty lists, lists of different lengths, values
  /// below 1, and r_b > w_b.
  static Pattern dilated(std::vector<std::int64_t> segment_lengths, std::vector<std::int64_t> dilation_rates,
                         const DilatedOptions& options = {});
  /// Pairs with block distance d (block of j minus block of i) in `offsets`, for blocks of `block` positions. Throws
  /// ValueError for a block that is not a multiple of 16, no offset, and more than 32 runs of neighboring offsets.
  static Pattern block_offsets(std::int64_t block, std::vector<std::int64_t> offsets);
  static Pattern block_offsets(std::int64_t block, std::initializer_list<std::int64_t> offsets) {
    return block_offsets(block, std::vector<std::int64_t>(offsets));
  }
  /// Head h takes offsets[h mod offsets.size()]; at most 8 lists with at most 32 runs in all.
  static Pattern block_offsets(std::int64_t block, std::vector<std::vector<std::int64_t>> offsets);
  /// block_offsets {0, +-rate for each rate}: "dilated_sparse".
  static Pattern dilated_sparse(std::int64_t block, std::vector<std::int64_t> rates = {1, 2, 4});
  /// Pairs whose blocks are a multiple of `step` apart, and at most `reach` blocks; up to 2^30 is as good as
  /// `unbounded`. Throws ValueError for an invalid block or reach, and a step below 1.
  static Pattern spaced_blocks(std::int64_t block, std::int64_t step, std::int64_t reach = unbounded);
  /// Blocks at most (window / block) / 2 apart. Throws ValueError for an invalid block, a negative window, and one of
  /// more than 2^31 blocks.
  static Pattern local_window(std::int64_t block, std::int64_t window);
  /// local_window(block, window) | global_tokens(count): rows and columns.
  static Pattern global_local(std::int64_t block, std::int64_t window, std::int64_t count);
  /// |i - j| < stride or (i - j) mod stride = 0 (Sparse Transformer, Child et al. 2019); & causal() for the original.
  static Pattern strided(std::int64_t stride);
  /// Positions form a grid of `width` columns: pairs in the same row or column.
  static Pattern axial(std::int64_t width);
  /// Each pair of blocks with probability `density`, by a hash of (seed, head, block of i, block of j) that is the same
  /// on all devices. Always includes the diagonal. Throws ValueError for a density outside (0, 1].
  static Pattern random_blocks(std::int64_t block, double density, std::uint64_t seed = 0);
  /// Listed blocks as compressed rows: query block b sees the key blocks columns[row_begin[b] .. row_begin[b + 1]),
  /// ascending. Rows after the list see nothing. Throws ValueError for malformed lists.
  static Pattern blocks(std::int64_t block, std::vector<std::int32_t> row_begin, std::vector<std::int32_t> columns);
  /// One list for each head (all of equal block size); head h takes lists[h mod lists.size()].
  struct BlockList {
    std::vector<std::int32_t> row_begin, columns;
  };
  static Pattern blocks(std::int64_t block, std::vector<BlockList> lists);
  /// bitmap[b * key_blocks + c]: whether query block b sees key block c.
  static Pattern block_bitmap(std::int64_t block, std::int64_t key_blocks, const std::vector<bool>& bitmap);
  /// The pattern of a function: the query at position i sees the key at position j if sees(i, j), both below `length`;
  /// no pairs beyond it. Calls the function once for every pair. Stores blocks of 64 positions, with a bitmap (512
  /// bytes for each different one) if not all of a block counts. Kernels compute whole blocks, so an equal pattern of
  /// another kind is faster. Throws ValueError for a length below 1 or above 2^31.
  static Pattern where(std::int64_t length, const std::function<bool(std::int64_t i, std::int64_t j)>& sees);
  /// Head h takes sees(h mod heads, i, j).
  static Pattern where(std::int64_t length, std::int64_t heads,
                       const std::function<bool(std::int64_t h, std::int64_t i, std::int64_t j)>& sees);
  /// The same by rows, also for other lengths of queries and keys: marks(h, i, keys) sets bit j mod 64 of keys[j / 64]
  /// for each key j that query i sees. Bits from `key_length` on are ignored. Calls the function once for every
  /// row. Throws ValueError for a length below 1 or above 2^31, less than one head, and more than 2^30 listed blocks.
  static Pattern where(std::int64_t length, std::int64_t key_length, std::int64_t heads,
                       const std::function<void(std::int64_t h, std::int64_t i, std::span<std::uint64_t> keys)>& marks);

  friend Pattern operator&(const Pattern& a, const Pattern& b);
  friend Pattern operator|(const Pattern& a, const Pattern& b);
  friend Pattern operator+(const Pattern& a, const Pattern& b);
  /// Returns this & causal() if `causal`, else this.
  Pattern causally(bool causal) const { return causal ? *this & Pattern::causal() : *this; }
  /// Returns whether both have the same parts.
  friend bool operator==(const Pattern& a, const Pattern& b);

  /// Returns how many times the key at position j counts for the query at position i in head h of `heads`. Throws
  /// ValueError if there is no such head.
  std::int64_t multiplicity(std::int64_t h, std::int64_t heads, std::int64_t i, std::int64_t j) const;
  /// The same for patterns that are equal in all heads.
  std::int64_t multiplicity(std::int64_t i, std::int64_t j) const { return multiplicity(0, 1, i, j); }

  /// Returns whether a query may see a key after its own position, judged by the form. Returns false for patterns cut
  /// by causal(), for where() and listed blocks that are causal, and for unions of these.
  bool looks_ahead() const;
  /// Returns the length that the pattern is made for; queries beyond it see nothing. where() and listed blocks have a
  /// length, and a union has the longest. All others, documents too, are `unbounded`.
  std::int64_t length() const;
  /// The keys before `position` that later queries may see, at most: [0, first) and [recent, position), first < recent
  /// or 0. Windows, segments, blocks and documents have a short past. Strides, random blocks and dense patterns see
  /// everything. A key that has dropped out never comes back.
  struct Past {
    std::int64_t first = 0, recent = 0;
  };
  Past past(std::int64_t position) const;

  /// The passes of the kernels, nearly always one. Each adds to the results of the passes before. The schedules point
  /// into this pattern's lists and stay valid as long as `owner` (or a copy of the pattern) lives.
  struct Compiled {
    std::vector<kernels::AttentionSchedule> passes;
    std::shared_ptr<const void> owner;
  };
  Compiled compile(std::int64_t heads, const kernels::PositionMap& queries, const kernels::PositionMap& keys) const;

  /// Returns visited pairs divided by admissible pairs: all pairs, or the pairs that causality, windows and
  /// documents leave. Throws ValueError for less than one head.
  double density(std::int64_t heads, std::int64_t queries, std::int64_t keys) const;
  /// Throws ValueError for a length that require_divisible refuses.
  void check_length(std::int64_t length) const;
  /// "dense", "causal", "window(255, 0)", "dilated(w 512 1024, r 1 2) & causal".
  std::string to_string() const;

 private:
  explicit Pattern(std::shared_ptr<const PatternTerms> terms, std::int64_t left = unbounded,
                   std::int64_t right = unbounded)
      : terms_(std::move(terms)), left_(left), right_(right) {}
  Pattern(std::int64_t left, std::int64_t right) : left_(left), right_(right) {}

  std::shared_ptr<const PatternTerms> terms_;  // nullptr: a band alone
  std::int64_t left_ = unbounded, right_ = unbounded;
};

}  // namespace poolgrad::attention
