// Online softmax (Milakov & Gimelshein 2018; Dao et al. 2022): a tile of queries of one head visits tiles of keys one
// after another. Internal to the forward kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "kernels/cpu/attention/direct.h"
#include "kernels/cpu/attention/pairs.h"
#include "kernels/cpu/attention/scores.h"
#include "kernels/cpu/attention/tiles.h"

namespace poolgrad::kernels::attention {

/// Number of adjacent queries in a row of scores: whole score blocks and whole rows of products.
template <class T>
inline constexpr int score_lanes = group_lanes<T> % rows_step == 0 ? group_lanes<T> : group_step<T>;

/// Capacity in rows of scores and operands for one packed tile of keys.
inline constexpr std::int64_t key_room = round_up(key_tile, pair_depth_step);

/// Sizes of the tiles of one call.
struct TileShape {
  std::int64_t rows;  // a multiple of score_lanes
  std::int64_t depth, v_depth, v_padded;
  PairProduct product = nullptr;  // for bf16; null: products are in the compute type
};

/// Scratch of one thread, carved out of one allocation, and the state of one tile of queries.
template <class T>
struct SoftmaxTile {
  T *keys, *values, *queries, *scores, *out, *maximum, *sum, *factor, *first, *last, *multiplicity;
  SoftmaxPairs pairs;

  /// Sets the pointers of `tile`, if any, and returns its size in elements.
  static std::int64_t carve(T* base, const TileShape& shape, SoftmaxTile* tile) {
    std::int64_t used = 0;
    const auto take = [&](std::int64_t count) {
      T* part = base ? base + used : nullptr;
      used += round_up(count, lanes<T>);
      return part;
    };
    SoftmaxTile t{};
    t.keys = take(key_room * shape.depth + panel_slack<T>);
    t.values = take(key_room * round_up(shape.v_padded, group_lanes<T>));
    t.queries = take(std::max(shape.rows * shape.depth, direct_rows * round_up(shape.depth, lanes<T>)));
    t.scores = take(key_room * score_lanes<T>);
    t.out = take(shape.rows * shape.v_padded);
    t.maximum = take(shape.rows);
    t.sum = take(shape.rows);
    t.factor = take(score_lanes<T>);
    t.first = take(shape.rows);
    t.last = take(shape.rows);
    t.multiplicity = take(key_room);
    if constexpr (std::is_same_v<T, float>) {
      t.pairs = {shape.product, shape.rows, shape.depth, shape.v_depth, shape.v_padded};
      if (shape.product)
        t.pairs.carve(key_room, score_lanes<T>,
                      [&](std::int64_t words) { return reinterpret_cast<std::uint32_t*>(take(words)); });
    }
    if (tile) *tile = t;
    return round_up(used, 64);
  }
};

/// The visited tile of keys, and its visibility per row.
template <class T>
struct Visit {
  const TileShape& shape;
  const AttentionProgram& program;
  const AttentionRun& of;  // the run that contains the keys
  std::int64_t head;       // head of the schedule
  Progression rows, run;
  Prefetch next_keys, next_values;
  const DirectOperands<T>& in_memory;
  bool direct = false;  // the keys are not packed
  bool full = true;     // every row sees every key; else first[row] <= step < last[row]
  const ScoreRules<T>* rules = nullptr;
  bool multiplicities = false;  // in SoftmaxTile::multiplicity
  WildRows wild = {};           // non-finite values; empty if every pair counts

  bool masked() const { return of.has(AttentionRun::masked); }
  /// Whether single pairs may be hidden.
  bool hides_pairs() const { return masked() || (rules && rules->bias); }
  bool modified() const { return (rules && rules->modifies()) || masked(); }
  /// The steps that a row sees, before masks of single pairs.
  Interval seen_by(std::int64_t row) const { return program.steps_seen(of, run, rows.position + row * rows.step); }
  /// Whether a row sees a key.
  bool sees(const SoftmaxTile<T>& t, std::int64_t row, std::int64_t key) const {
    if (!full && (static_cast<T>(key) < t.first[row] || static_cast<T>(key) >= t.last[row])) return false;
    if (rules && rules->hides(rows.row + row * rows.stride, run.row + key * run.stride)) return false;
    return !masked() || program.keeps(of, head, rows.position + row * rows.step, run.position + key * run.step);
  }
};

/// Keys seen by some, and by all, of the rows [begin, end).
struct Seen {
  Range any, all;
};
template <class T>
Seen keys_seen(const SoftmaxTile<T>& t, const Visit<T>& visit, std::int64_t begin, std::int64_t end) {
  const std::int64_t count = visit.run.count;
  if (visit.full) return {{0, count}, {0, round_up(count, rows_step)}};
  T low = static_cast<T>(count), high = 0, latest = 0, earliest = low;
  for (std::int64_t i = begin; i < end; ++i) {
    const T first = t.first[i], last = t.last[i];
    low = first < last ? std::min(low, first) : low;
    high = first < last ? std::max(high, last) : high;
    latest = std::max(latest, first);
    earliest = std::min(earliest, last);
  }
  Seen seen{{static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)},
            {static_cast<std::int64_t>(latest), static_cast<std::int64_t>(earliest)}};
  // Rows beyond the last key repeat it, so they change no maximum.
  if (seen.all.end == count) seen.all.end = round_up(count, rows_step);
  return seen;
}

/// Sets scores of rows_step keys and one group of queries to -infinity where the query does not see the key.
template <class T>
[[gnu::always_inline]] inline void hide_unseen(const SoftmaxTile<T>& t, std::int64_t key, std::int64_t row,
                                               Vec<T> (&sum)[rows_step][2]) {
  const Vec<T> nothing = simd::broadcast(-std::numeric_limits<T>::infinity());
#pragma GCC unroll 8
  for (int r = 0; r < rows_step; ++r) {
    const Vec<T> step = simd::broadcast(static_cast<T>(key + r));
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) {
      const std::int64_t at = row + vector_offset<T>(v);
      sum[r][v] = step < simd::load<T>(t.first + at) ? nothing : sum[r][v];
      sum[r][v] = step >= simd::load<T>(t.last + at) ? nothing : sum[r][v];
    }
  }
}

/// Computes scores of one group of queries and updates maximum[lane]. Not inlined, so that the product can use all
/// registers.
template <class T, bool Masked>
[[gnu::noinline]] void score_pair(const SoftmaxTile<T>& t, const Visit<T>& visit, const T* start, Seen seen,
                                  std::int64_t row, T* scores, T* maximum) {
  constexpr int width = score_lanes<T>;
  const std::int64_t depth = visit.shape.depth;
  const T* queries = t.queries + row * depth;
  const bool in_memory = visit.direct || t.pairs.product;
  const T scale = visit.direct ? T(1) : static_cast<T>(t.pairs.scale);
  for (std::int64_t key = round_down(seen.any.begin, rows_step); key < seen.any.end; key += rows_step) {
    Vec<T> sum[rows_step][2];
    if (in_memory)
      load_scores<T>(sum, scores + key * width, width, scale, start ? start + key : nullptr);
    else
      score_block<T, 2>(sum, t.keys, key, queries, depth, start);
    if (Masked && !(key >= seen.all.begin && key + rows_step <= seen.all.end)) hide_unseen(t, key, row, sum);
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) {
      // Maxima stay in memory: the product above needs the registers.
      Vec<T> largest = simd::load<T>(maximum + vector_offset<T>(v));
#pragma GCC unroll 8
      for (int r = 0; r < rows_step; ++r) {
        largest = simd::max(sum[r][v], largest);
        simd::store(scores + (key + r) * width + vector_offset<T>(v), sum[r][v]);
      }
      simd::store(maximum + vector_offset<T>(v), largest);
    }
  }
}

/// Computes weights of one group of queries relative to their maxima so far, and the sums of the weights. Makes one
/// pass over the scores. Not inlined, as above.
template <class T, bool Masked>
[[gnu::noinline]] void weigh_scores(const SoftmaxTile<T>& t, const Visit<T>& visit, const T* start, Seen seen,
                                    std::int64_t row, T* scores, T* sums) {
  constexpr int width = score_lanes<T>;
  const std::int64_t depth = visit.shape.depth;
  const T* queries = t.queries + row * depth;
  const Vec<T> highest = simd::broadcast(highest_exponent<T>);
  Vec<T> total[2] = {};
  for (std::int64_t key = round_down(seen.any.begin, rows_step); key < seen.any.end; key += rows_step) {
    Vec<T> sum[rows_step][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r)
#pragma GCC unroll 2
      for (std::size_t v = 0; v < 2; ++v)
        sum[r][v] =
            (start ? simd::broadcast(start[key + r]) : Vec<T>{}) - simd::load<T>(t.maximum + row + vector_offset<T>(v));
    multiply_add<T, rows_step, 2, 1, rows_step>(sum, depth, t.keys + key * depth, queries, group_lanes<T>);
    if (Masked && !(key >= seen.all.begin && key + rows_step <= seen.all.end)) hide_unseen(t, key, row, sum);
#pragma GCC unroll 8
    for (int r = 0; r < rows_step; ++r) {
      if (key + r >= seen.any.end) break;
#pragma GCC unroll 2
      for (std::size_t v = 0; v < 2; ++v) {
        const Vec<T> weight = exp_bounded<T>(simd::min(highest, sum[r][v]));
        total[v] += weight;
        simd::store(scores + (key + r) * width + vector_offset<T>(v), weight);
      }
    }
  }
  for (std::size_t v = 0; v < 2; ++v) simd::store(sums + vector_offset<T>(v), total[v]);
}

/// score_pair() with score rules, multiplicities and masks.
template <class T>
void score_modified(const SoftmaxTile<T>& t, const Visit<T>& visit, Seen seen, std::int64_t row, T* scores,
                    T* maximum) {
  constexpr int width = score_lanes<T>;
  T unused[static_cast<std::size_t>(group_lanes<T>)] = {};
  score_pair<T, false>(t, visit, nullptr, seen, row, scores, unused);
  const ScoreBlock<T> block{scores, width, seen.any.begin, seen.any.end, group_lanes<T>};
  const Progression queries = part_of(visit.rows, row, std::min<std::int64_t>(group_lanes<T>, visit.rows.count - row));
  if (visit.rules && visit.rules->modifies()) modify_scores(*visit.rules, visit.run, queries, block);
  if (visit.masked()) hide_counted(*visit.program.schedule, visit.of, visit.head, visit.run, queries, block);
  const Vec<T> nothing = simd::broadcast(-std::numeric_limits<T>::infinity());
  for (std::int64_t key = seen.any.begin; key < seen.any.end; ++key) {
    const Vec<T> step = simd::broadcast(static_cast<T>(key));
    for (std::size_t v = 0; v < 2; ++v) {
      T* at = scores + key * width + vector_offset<T>(v);
      Vec<T> score = simd::load<T>(at);
      if (visit.multiplicities) score += t.multiplicity[key];
      if (!visit.full) {
        score = step < simd::load<T>(t.first + row + vector_offset<T>(v)) ? nothing : score;
        score = step >= simd::load<T>(t.last + row + vector_offset<T>(v)) ? nothing : score;
      }
      T* largest = maximum + vector_offset<T>(v);
      simd::store(largest, simd::max(score, simd::load<T>(largest)));
      simd::store(at, score);
    }
  }
}

/// Turns scores into weights relative to the new maxima and updates the rows' maxima and sums. `factors` holds the new
/// maxima on entry and the factors of earlier results on return.
template <class T>
void weigh_pair(const SoftmaxTile<T>& t, Range any, std::int64_t row, T* scores, T* factors) {
  constexpr int width = score_lanes<T>;
  Vec<T> shift[2], sum[2];
  for (std::size_t v = 0; v < 2; ++v) {
    const std::int64_t at = row + vector_offset<T>(v);
    const Vec<T> nothing = simd::broadcast(-std::numeric_limits<T>::infinity());
    const Vec<T> maximum = simd::load<T>(factors + vector_offset<T>(v));
    shift[v] = maximum == nothing ? Vec<T>{} : maximum;  // no key seen yet
    const Vec<T> factor = exp_bounded<T>(simd::load<T>(t.maximum + at) - shift[v]);
    sum[v] = factor * simd::load<T>(t.sum + at);
    simd::store(factors + vector_offset<T>(v), factor);
    simd::store(t.maximum + at, maximum);
  }
  for (std::int64_t key = any.begin; key < any.end; ++key) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; ++v) {
      T* score = scores + key * width + vector_offset<T>(v);
      const Vec<T> weight = exp_bounded<T>(simd::load<T>(score) - shift[v]);
      sum[v] += weight;
      simd::store(score, weight);
    }
  }
  for (std::size_t v = 0; v < 2; ++v) simd::store(t.sum + row + vector_offset<T>(v), sum[v]);
}

/// Sets the weights of keys [begin, end) to 0 for one group of queries.
template <class T>
void clear_weights(T* scores, std::int64_t begin, std::int64_t end) {
  for (std::int64_t key = begin; key < end; ++key) std::fill_n(scores + key * score_lanes<T>, group_lanes<T>, T{});
}

/// Weights may be relative to an older maximum while their sum over a tile of keys stays below this.
template <class T>
inline constexpr T most_growth = 65536;

/// Weights and sums of one group of queries that all have seen keys. A maximum grows only if necessary. Each query
/// decides separately, so finite keys that it does not see change none of its bits.
template <class T, bool Masked>
bool weigh_plain(const SoftmaxTile<T>& t, const Visit<T>& visit, const T* start, Seen seen, std::int64_t row, T* scores,
                 T* factors) {
  constexpr int group = group_lanes<T>;
  T sums[static_cast<std::size_t>(group)], maximum[static_cast<std::size_t>(group)];
  T *reference = t.maximum + row, *sum = t.sum + row;
  weigh_scores<T, Masked>(t, visit, start, seen, row, scores, sums);
  const bool grows = std::any_of(sums, sums + group, [](T of_query) { return of_query > most_growth<T>; });
  if (grows) {
    std::copy_n(reference, group, maximum);
    score_pair<T, Masked>(t, visit, start, seen, row, scores, maximum);
    for (int i = 0; i < group; ++i) {
      const T from = reference[i];
      const bool grown = sums[i] > most_growth<T>;
      if (grown) reference[i] = maximum[i];
      factors[i] = grown ? std::exp(from - maximum[i]) : T(1);
      sum[i] *= factors[i];
    }
    weigh_scores<T, Masked>(t, visit, start, seen, row, scores, sums);
  } else {
    std::fill_n(factors, group, T(1));
  }
  for (int i = 0; i < group; ++i) sum[i] += sums[i];
  return grows;
}

/// Computes scores and weights of one group of queries that sees some of the keys. `factors` receives the factors of
/// the results so far. Returns whether any factor may differ from 1.
template <class T>
bool weigh_group(const SoftmaxTile<T>& t, const Visit<T>& visit, Seen seen, std::int64_t row, T* scores, T* factors) {
  const T* start = visit.multiplicities ? t.multiplicity : nullptr;
  const auto begun = [&] {
    return std::none_of(t.maximum + row, t.maximum + row + group_lanes<T>,
                        [](T maximum) { return maximum == -std::numeric_limits<T>::infinity(); });
  };
  if (!visit.modified() && !visit.direct && !t.pairs.product && begun())
    return visit.full ? weigh_plain<T, false>(t, visit, start, seen, row, scores, factors)
                      : weigh_plain<T, true>(t, visit, start, seen, row, scores, factors);
  std::copy_n(t.maximum + row, group_lanes<T>, factors);
  if (visit.modified())
    score_modified(t, visit, seen, row, scores, factors);
  else if (visit.full)
    score_pair<T, false>(t, visit, start, seen, row, scores, factors);
  else
    score_pair<T, true>(t, visit, start, seen, row, scores, factors);
  weigh_pair(t, seen.any, row, scores, factors);
  return true;
}

/// out += weights * packed values of the keys `seen`.
template <class T>
void add_packed_values(const SoftmaxTile<T>& t, const Visit<T>& visit, std::int64_t row, std::int64_t count, Range seen,
                       bool rescaled) {
  constexpr int width = score_lanes<T>;
  const std::int64_t v_padded = visit.shape.v_padded;
  if constexpr (std::is_same_v<T, float>)
    if (t.pairs.product) return t.pairs.add_values(t.out + row * v_padded, count, t.factor, t.scores, width, seen);
  for (std::int64_t i = 0; i < count; i += rows_step) {
    const Range any = keys_seen(t, visit, row + i, row + std::min<std::int64_t>(i + rows_step, count)).any;
    if (empty(any)) continue;
    add_product<T, 1, width>(t.out + (row + i) * v_padded, v_padded, v_padded, any.end - any.begin,
                             t.scores + any.begin * width + i, t.values + any.begin * group_lanes<T>, group_lanes<T>,
                             rescaled ? t.factor + i : nullptr, key_room * group_lanes<T>);
  }
}

/// out += weights * values of the keys `seen` in memory, except the non-finite values.
template <class T>
void add_tame_values(const SoftmaxTile<T>& t, Visit<T>& visit, std::int64_t row, std::int64_t count, Range seen) {
  const auto add = [&](Range keys, const T* factors) {
    visit.in_memory.add(visit.in_memory, t.out + row * visit.shape.v_padded, visit.shape.v_padded, count, factors,
                        t.scores, score_lanes<T>, keys, visit.next_values);
  };
  constexpr T ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
  static_assert(std::size(ones) == direct_rows);
  const T* factors = t.factor;
  for (std::int64_t n = 0; n < visit.wild.count; ++n) {
    const std::int64_t key = visit.wild.row[n];
    if (key < seen.begin || key >= seen.end) continue;
    add({seen.begin, key}, std::exchange(factors, ones));
    seen.begin = key + 1;
  }
  add(seen, factors);
}

/// out += weight * value for the non-finite values and the rows that see them.
template <class T>
void add_wild_values(const SoftmaxTile<T>& t, Visit<T>& visit, std::int64_t row, std::int64_t count) {
  const std::int64_t v_padded = visit.shape.v_padded;
  constexpr T one = 1;
  for (std::int64_t n = 0; n < visit.wild.count; ++n)
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t key = visit.wild.row[n];
      if (visit.sees(t, row + i, key))
        visit.in_memory.add(visit.in_memory, t.out + (row + i) * v_padded, v_padded, 1, &one, t.scores + i,
                            score_lanes<T>, {key, key + 1}, visit.next_values);
    }
}

/// Processes a packed tile of keys and values for the queries of a tile.
template <class T>
void visit_keys(const SoftmaxTile<T>& t, Visit<T>& visit) {
  constexpr int width = score_lanes<T>;
  constexpr std::size_t pairs = static_cast<std::size_t>(width / group_lanes<T>);
  const std::int64_t groups = ceil_div(visit.rows.count, group_lanes<T>);
  const std::int64_t fetches = ceil_div(std::max(visit.next_keys.count, visit.next_values.count), groups);
  for (std::int64_t row = 0; row < visit.rows.count; row += width) {
    const std::int64_t count = std::min<std::int64_t>(width, visit.rows.count - row);
    Seen seen[pairs];
    Range keys{visit.run.count, 0};
    for (std::size_t n = 0; n < pairs; ++n) {
      const std::int64_t lane = static_cast<std::int64_t>(n) * group_lanes<T>;
      if (lane >= count) break;
      seen[n] = keys_seen(t, visit, row + lane, row + lane + group_lanes<T>);
      if (!empty(seen[n].any)) keys = {std::min(keys.begin, seen[n].any.begin), std::max(keys.end, seen[n].any.end)};
    }
    if (empty(keys)) continue;
    if (visit.direct) {
      visit.in_memory.score(visit.in_memory, t.queries, count, keys, visit.next_keys, t.scores, width);
    } else if constexpr (std::is_same_v<T, float>) {
      if (t.pairs.product) t.pairs.score(t.scores, width, row, count, keys);
    }
    bool rescaled = false;
    for (std::size_t n = 0; n < pairs; ++n) {
      const std::int64_t lane = static_cast<std::int64_t>(n) * group_lanes<T>, first = row + lane;
      if (lane >= count) break;
      if (empty(seen[n].any)) seen[n].any = {keys.begin, keys.begin};
      if (!visit.direct) {
        visit.next_keys.fetch(fetches);
        visit.next_values.fetch(fetches);
      }
      T* scores = t.scores + lane;
      rescaled |= weigh_group(t, visit, seen[n], first, scores, t.factor + lane);
      clear_weights(scores, keys.begin, seen[n].any.begin);
      clear_weights(scores, seen[n].any.end, keys.end);
    }
    if (visit.rules && visit.rules->drops)
      drop_weights(*visit.rules, visit.run, part_of(visit.rows, row, count),
                   ScoreBlock<T>{t.scores, width, keys.begin, keys.end, round_up(count, group_lanes<T>)});
    if (visit.direct)
      add_tame_values(t, visit, row, count, keys);
    else
      add_packed_values(t, visit, row, count, keys, rescaled);
    if (visit.wild.count > 0) add_wild_values(t, visit, row, count);
  }
}

}  // namespace poolgrad::kernels::attention
