// Score rules, shared by forward and backward: softcap, bias, ALiBi, multiplicities, hidden pairs and dropout. A block
// of scores is stored by key: row t is step t of `keys`, lane i is step i of `queries`. Scores are not multiplied by
// log2(e), because the largest biases and sinks would overflow. A weight is exp(score - lse).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/attention.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/functors/attention_dropout.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels::attention {

// Finds the pairs of a masked run that count (AttentionSchedule::keeps). A pair does not count if a bitmap excludes it,
// or if an earlier term of the group or an earlier branch of a united term has it. Rows between two ends of segments
// and blocks agree, so one search serves them all. Lists are searched by bisection.

class CountedBefore {
 public:
  /// For the rows that visit `run`, a part of a masked run of query head h.
  CountedBefore(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h, const Progression& run)
      : s_(schedule), of_(of), h_(h), run_(run) {}

  /// Sets counted[s] for the steps [steps) of the run: whether the pair with the row at `row` does not count. Rows are
  /// `step` apart. Returns the position up to which all rows agree.
  std::int64_t mark(std::int64_t row, std::int64_t step, Interval steps, bool* counted) {
    row_ = row, step_ = step, steps_ = steps, counted_ = counted, until_ = far_away;
    std::fill(counted + steps.begin, counted + steps.end, false);
    const AttentionTerm& own = s_.term[of_.term];
    for (int t = 0; t < of_.term; ++t)
      if (s_.term[t].group == own.group) mark_term(s_.term[t]);
    if (own.unite && !own.nested)
      for (int b = 0; b < of_.part; ++b) mark_branch(own, b, everywhere);
    if (own.bits != nullptr)
      for_each_listed(own, [&](std::int64_t block, std::int64_t bitmap) {
        if (bitmap >= 0) mark_bits(own, block, bitmap, everywhere, false);
      });
    return until_;
  }

 private:
  void mark_term(const AttentionTerm& term) {
    using Kind = AttentionTerm::Kind;
    Interval seen = everywhere;
    const std::int64_t left = s_.flipped ? term.right : term.left, right = s_.flipped ? term.left : term.right;
    if (left != unbounded) seen.begin = row_ - left;
    if (right != unbounded) seen.end = row_ + right + 1;
    if (left != unbounded || right != unbounded) same_before(row_ + 1);
    switch (term.kind) {
      case Kind::all: return mark_positions(seen);
      case Kind::columns:
      case Kind::rows:
        if ((term.kind == Kind::columns) != s_.flipped) return mark_positions(seen & Interval{-far_away, term.size});
        if (row_ >= term.size) return;
        same_before(term.size);
        return mark_positions(seen);
      case Kind::segment: return mark_positions(seen & block_of_row(term.size));
      case Kind::residue:
        if (step_ % term.size != 0) same_before(row_ + 1);
        return mark_positions(seen, term.size, row_);
      case Kind::dilated:
        for (int b = 0; b < term.branches; ++b) mark_branch(term, b, seen);
        return;
      default: mark_blocks(term, seen);
    }
  }

  void mark_branch(const AttentionTerm& term, int b, Interval seen) {
    if (term.grouped && b != term.branch_of(h_, s_.heads)) return;
    const std::int64_t r = term.dilation_rate[b], phase = term.phase(b, h_, s_.heads);
    const Interval segment = block_of_row(term.segment_length[b]);
    if (step_ % r != 0) same_before(row_ + 1);
    if ((row_ - segment.begin) % r == phase) mark_positions(seen & segment, r, segment.begin + phase);
  }

  void mark_blocks(const AttentionTerm& term, Interval seen) {
    using Kind = AttentionTerm::Kind;
    if (steps_.empty()) return;
    const std::int64_t size = term.size, row = block_of_row(size).begin / size;
    const auto [first, last] = blocks_of_steps(size);
    const auto mark = [&](std::int64_t begin, std::int64_t end) {
      mark_positions(seen & Interval{begin * size, end * size});
    };
    if (term.kind == Kind::offsets) {
      const std::int64_t set = h_ % term.sets;
      for (int n = term.set_begin[set]; n < term.set_begin[set + 1]; ++n) {
        std::int64_t from = row + (s_.flipped ? -term.run[n].last : term.run[n].first);
        const std::int64_t to = row + (s_.flipped ? -term.run[n].first : term.run[n].last);
        if (term.step == 1) {
          mark(from, to + 1);
          continue;
        }
        if (from < first) from += ceil_div(first - from, term.step) * term.step;
        for (; from <= std::min(to, last); from += term.step) mark(from, from + 1);
      }
    } else if (term.kind == Kind::listed) {
      for_each_listed(term, [&](std::int64_t block, std::int64_t bitmap) {
        if (bitmap < 0)
          mark(block, block + 1);
        else
          mark_bits(term, block, bitmap, seen, true);
      });
    } else {
      const std::uint64_t key = term.draw_key(h_);
      for (std::int64_t block = first; block <= last; ++block)
        if (s_.flipped ? term.draws(key, block, row) : term.draws(key, row, block)) mark(block, block + 1);
    }
  }

  /// First and last block of the steps, which must not be empty.
  std::pair<std::int64_t, std::int64_t> blocks_of_steps(std::int64_t size) const {
    return {floor_div(run_.position + steps_.begin * run_.step, size),
            floor_div(run_.position + (steps_.end - 1) * run_.step, size)};
  }

  /// Calls f(block, bitmap) for the listed blocks of the row among the steps; bitmap is -1 without a bitmap.
  template <class F>
  void for_each_listed(const AttentionTerm& term, const F& f) {
    if (steps_.empty()) return;
    const auto [first, last] = blocks_of_steps(term.size);
    const std::int64_t blocks = s_.flipped ? term.block_columns : term.block_rows,
                       row = block_of_row(term.size).begin / term.size;
    if (row < 0 || row >= blocks) return;
    const std::int64_t* begin =
        (s_.flipped ? term.column_begin : term.row_begin) + h_ % term.lists * (blocks + 1) + row;
    const std::int32_t* list = s_.flipped ? term.rows : term.columns;
    const std::int32_t* bitmap = s_.flipped ? term.row_bitmap : term.column_bitmap;
    for (auto at = std::lower_bound(list + begin[0], list + begin[1], first); at < list + begin[1] && *at <= last; ++at)
      f(*at, bitmap == nullptr ? -1 : bitmap[at - list]);
  }

  /// Marks steps in the block whose bit for this row equals `value`.
  void mark_bits(const AttentionTerm& term, std::int64_t block, std::int64_t bitmap, Interval seen, bool value) {
    same_before(row_ + 1);
    const Interval positions = seen & Interval{block * term.size, (block + 1) * term.size};
    const std::uint64_t* const rows = term.bits + bitmap * term.size;
    const std::int64_t own = floor_mod(row_, term.size), end = step_at(positions.end);
    for (std::int64_t s = step_at(positions.begin); s < end; ++s) {
      const std::int64_t other = run_.position + s * run_.step - block * term.size;
      const std::uint64_t bit = s_.flipped ? rows[other] >> own : rows[own] >> other;
      if (((bit & 1) != 0) == value) counted_[s] = true;
    }
  }

  std::int64_t step_at(std::int64_t position) const {
    return std::clamp(ceil_div(position - run_.position, run_.step), steps_.begin, steps_.end);
  }
  /// Marks steps at these positions that equal phase (mod modulus).
  void mark_positions(Interval positions, std::int64_t modulus = 1, std::int64_t phase = 0) {
    const std::int64_t begin = step_at(positions.begin), end = step_at(positions.end);
    if (begin >= end) return;
    if (modulus == 1) return std::fill(counted_ + begin, counted_ + end, true);
    const std::int64_t step = run_.step % modulus;
    std::int64_t apart = floor_mod(run_.position + begin * run_.step - phase, modulus);
    for (std::int64_t s = begin; s < end; ++s) {
      if (apart == 0) counted_[s] = true;
      if ((apart += step) >= modulus) apart -= modulus;
    }
  }

  Interval block_of_row(std::int64_t size) {
    const std::int64_t begin = floor_div(row_, size) * size;
    same_before(begin + size);
    return {begin, begin + size};
  }
  void same_before(std::int64_t position) { until_ = std::min(until_, position); }

  const AttentionSchedule& s_;
  const AttentionRun& of_;
  const std::int64_t h_;
  const Progression& run_;
  std::int64_t row_ = 0, step_ = 0, until_ = 0;
  Interval steps_{0, 0};
  bool* counted_ = nullptr;
};

/// Calls f(begin, end, counted) for ranges of the rows [rows) of a tile that agree on the steps [steps) of `run`.
template <std::size_t Most, class F>
void for_each_agreement(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h,
                        const Progression& tile, Interval rows, const Progression& run, Interval steps, const F& f) {
  CountedBefore before(schedule, of, h, run);
  bool counted[Most];
  for (std::int64_t i = rows.begin, end = 0; i < rows.end; i = end) {
    const std::int64_t position = tile.position + i * tile.step;
    const std::int64_t until = before.mark(position, tile.step, steps, counted);
    end = tile.step == 0 ? rows.end : std::clamp(ceil_div(until - tile.position, tile.step), i + 1, rows.end);
    f(i, end, static_cast<const bool*>(counted));
  }
}

// The scores.

/// Maximum number of keys or queries of a block of scores.
inline constexpr std::size_t score_room = 192;

/// A part of a buffer of scores: keys [begin, end) by `lanes` queries, a multiple of simd::lanes<T>. Lanes beyond the
/// queries are undefined.
template <class T>
struct ScoreBlock {
  T* data;
  std::int64_t stride, begin, end, lanes;
  T* row(std::int64_t key) const { return data + key * stride; }
};

/// Score rules of one head of one batch entry.
template <class T>
struct ScoreRules {
  T softcap = 0, slope = 0;  // 0: off
  const T* bias = nullptr;
  std::int64_t bias_query = 0, bias_key = 0;  // strides of the bias
  bool drops = false;
  AttentionDropout dropout;
  T kept = 1;                        // factor of kept weights
  std::int64_t batch = 0, head = 0;  // indices in the whole call

  static ScoreRules make(const AttentionScores& scores, std::int64_t batch, std::int64_t head) {
    ScoreRules rules;
    rules.softcap = static_cast<T>(scores.softcap);
    if (scores.alibi.data) rules.slope = scores.alibi.as<const T>()[head * scores.alibi.strides[0]];
    if (const View& b = scores.bias; b.data) {
      rules.bias = b.as<const T>() + batch * b.strides[0] + head * b.strides[1];
      rules.bias_query = b.strides[2];
      rules.bias_key = b.strides[3];
    }
    rules.drops = scores.dropout > 0;
    rules.dropout = AttentionDropout::make(scores.dropout_key, scores.dropout);
    rules.kept = static_cast<T>(1 / (1 - scores.dropout));
    rules.batch = scores.first_batch + batch;
    rules.head = scores.first_head + head;
    return rules;
  }
  bool modifies() const { return softcap != 0 || slope != 0 || bias; }
  /// Whether a bias of -infinity hides the pair of these rows of q and k.
  bool hides(std::int64_t query, std::int64_t key) const {
    return bias && bias[query * bias_query + key * bias_key] == -std::numeric_limits<T>::infinity();
  }
};

/// out[t] = log_multiplicity of step t of a part of a run; 0 from keys.count up to `padded`.
template <class T>
void log_multiplicities(const AttentionProgram& program, const AttentionRun& of, const Progression& keys, T* out,
                        std::int64_t padded) {
  const double* const table = program.log_multiplicity + of.table;
  const std::int64_t period = of.period, step = floor_mod(keys.step, period);
  std::int64_t phase = floor_mod(keys.position, period);
  for (std::int64_t t = 0; t < keys.count; ++t) {
    out[t] = static_cast<T>(table[phase]);
    if ((phase += step) >= period) phase -= period;
  }
  std::fill(out + keys.count, out + padded, T{});
}

namespace detail {
/// The bias of one key for queries `lane` .. `lane` + lanes<T> - 1, out of `count`.
template <class T>
simd::Vec<T> load_bias(const T* of_key, std::int64_t stride, std::int64_t lane, std::int64_t count) {
  if (stride == 0) return simd::broadcast(*of_key);
  if (stride == 1) return simd::load_partial<T>(of_key + lane, count - lane);
  T buffer[static_cast<std::size_t>(simd::lanes<T>)];
  for (int i = 0; i < simd::lanes<T>; ++i) buffer[i] = of_key[std::min(lane + i, count - 1) * stride];
  return simd::load<T>(buffer);
}
}  // namespace detail

/// Applies softcap, bias and ALiBi, in this order, to keys [begin, end), which must be steps of `keys`. A bias of
/// -infinity replaces the score. If `derivative` is not null, it receives the derivative of the softcap, if any, in the
/// layout of the scores.
template <class T>
void modify_scores(const ScoreRules<T>& rules, const Progression& keys, const Progression& queries, ScoreBlock<T> block,
                   T* derivative = nullptr) {
  using V = simd::Vec<T>;
  V steps;
  for (int i = 0; i < simd::lanes<T>; ++i) steps[i] = static_cast<T>(i);
  const V nothing = simd::broadcast(-std::numeric_limits<T>::infinity());
  const T inverse = rules.softcap != 0 ? 1 / rules.softcap : T{}, step = static_cast<T>(queries.step);
  for (std::int64_t key = block.begin; key < block.end; ++key) {
    T* row = block.row(key);
    const T* bias = rules.bias
                        ? rules.bias + (keys.row + key * keys.stride) * rules.bias_key + queries.row * rules.bias_query
                        : nullptr;
    const std::int64_t distance = queries.position - (keys.position + key * keys.step);  // for lane 0
    for (std::int64_t lane = 0; lane < block.lanes; lane += simd::lanes<T>) {
      V score = simd::load<T>(row + lane);
      if (rules.softcap != 0) {
        const V t = simd::tanh(score * inverse);
        if (derivative) simd::store(derivative + key * block.stride + lane, T(1) - t * t);
        score = rules.softcap * t;
      }
      if (bias) {
        const V added = detail::load_bias(bias, rules.bias_query * queries.stride, lane, queries.count);
        score = added == nothing ? nothing : score + added;
      }
      if (rules.slope != 0)
        score -= rules.slope * simd::detail::abs<T>(static_cast<T>(distance + lane * queries.step) + steps * step);
      simd::store(row + lane, score);
    }
  }
}

/// With rows of the schedule as lanes: sets scores of pairs counted before to -infinity.
template <class T>
void hide_counted(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h, const Progression& keys,
                  const Progression& queries, ScoreBlock<T> block) {
  for_each_agreement<score_room>(
      schedule, of, h, queries, {0, std::min(block.lanes, queries.count)}, keys, {block.begin, block.end},
      [&](std::int64_t begin, std::int64_t end, const bool* counted) {
        for (std::int64_t key = block.begin; key < block.end; ++key)
          if (counted[key])
            std::fill(block.row(key) + begin, block.row(key) + end, -std::numeric_limits<T>::infinity());
      });
}
/// The same with rows of the schedule as keys.
template <class T>
void hide_counted_by_key(const AttentionSchedule& by_key, const AttentionRun& of, std::int64_t h,
                         const Progression& keys, const Progression& queries, ScoreBlock<T> block) {
  const std::int64_t count = std::min(block.lanes, queries.count);
  for_each_agreement<score_room>(by_key, of, h, keys, {block.begin, block.end}, queries, {0, count},
                                 [&](std::int64_t begin, std::int64_t end, const bool* counted) {
                                   for (std::int64_t key = begin; key < end; ++key) {
                                     T* row = block.row(key);
                                     for (std::int64_t i = 0; i < count; ++i)
                                       row[i] = counted[i] ? -std::numeric_limits<T>::infinity() : row[i];
                                   }
                                 });
}

/// Calls f(key, lane, factors) for every key of the block and every simd::lanes<T> queries. The factor is 0 for dropped
/// pairs, otherwise 1 / (1 - p).
template <class T, class F>
[[gnu::always_inline]] inline void for_each_dropout(const ScoreRules<T>& rules, const Progression& keys,
                                                    const Progression& queries, const ScoreBlock<T>& block,
                                                    const F& f) {
  constexpr int width = simd::lanes<T>;
  constexpr std::size_t chunks = width / philox_lanes;
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  using Bits = simd::Vec<Word>;
  static_assert(width % philox_lanes == 0);
  const auto counter = [](std::uint32_t word) { return simd::broadcast(std::uint64_t{word}); };
  const Bits threshold = simd::broadcast(Word{rules.dropout.threshold});
  const simd::Vec<T> kept = simd::broadcast(rules.kept), dropped{};
  const std::uint32_t low = static_cast<std::uint32_t>(rules.batch << 16 ^ rules.head);
  for (std::int64_t lane = 0; lane < block.lanes; lane += width) {
    PhiloxLanes query[chunks];
    for (std::size_t part = 0; part < chunks; ++part) {
      const std::int64_t first = lane + static_cast<std::int64_t>(part) * philox_lanes;
      PhiloxLanes positions{};
      for (int i = 0; i < philox_lanes; ++i)
        positions[i] = static_cast<std::uint64_t>(queries.position + (first + i) * queries.step);
      query[part] = positions;
    }
    for (std::int64_t key = block.begin; key < block.end;) {
      const std::int64_t group = (keys.position + key * keys.step) >> 2;
      const std::uint32_t high = static_cast<std::uint32_t>(group >> 32) << 16;
      Bits words[4];
#pragma GCC unroll 2
      for (std::size_t part = 0; part < chunks; ++part) {
        PhiloxLanes x[4] = {counter(static_cast<std::uint32_t>(group)), query[part], counter(low),
                            ((query[part] >> 32) & 0xffffu) | std::uint64_t{high}};
        philox(x, rules.dropout.key0, rules.dropout.key1);
        for (int w = 0; w < 4; ++w) {
          if constexpr (sizeof(T) == 4) {
            using Half = std::uint32_t __attribute__((vector_size(4 * philox_lanes)));
            const Half half = __builtin_convertvector(x[w], Half);
            std::memcpy(reinterpret_cast<char*>(&words[w]) + part * sizeof(Half), &half, sizeof(Half));
          } else {
            words[w] = x[w] & 0xffffffffu;
          }
        }
      }
      for (; key < block.end && (keys.position + key * keys.step) >> 2 == group; ++key)
        f(key, lane, words[(keys.position + key * keys.step) & 3] >= threshold ? kept : dropped);
    }
  }
}

/// Multiplies the weights of the block by 0 or 1 / (1 - p).
template <class T>
void drop_weights(const ScoreRules<T>& rules, const Progression& keys, const Progression& queries,
                  const ScoreBlock<T>& block) {
  for_each_dropout(rules, keys, queries, block, [&](std::int64_t key, std::int64_t lane, simd::Vec<T> factor) {
    T* weight = block.row(key) + lane;
    simd::store(weight, factor * simd::load<T>(weight));
  });
}

}  // namespace poolgrad::kernels::attention
