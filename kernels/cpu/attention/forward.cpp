// Forward attention on the CPU. Each work item is a tile of queries of one head and visits the runs of keys in the
// schedule's program. The partition depends only on the operands, so the number of threads changes no bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "kernels/cpu/attention/softmax.h"
#include "kernels/cpu/attention/variants.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"
#include "kernels/schedule/tiles.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace attention;

/// Data shared by all work items of a call.
struct Problem {
  const AttentionScores& scores;
  View q, k, v, out, lse, carry_out = {}, carry_lse = {};
  Interval keys{0, k.shape[1]};  // rows of k and v
  TileShape shape = {};
  bool stacked = false;  // the queries are the heads of a group, all at one position

  std::int64_t q_heads() const { return q.shape[2]; }
  std::int64_t kv_head(std::int64_t head) const { return head / (q.shape[2] / k.shape[2]); }
};

template <class T>
Head<T> row_values(const View& view, std::int64_t batch, std::int64_t head) {  // of (B, H, N)
  return {view.as<T>() + batch * view.strides[0] + head * view.strides[1], view.strides[2]};
}

/// Initializes the softmax state before the first key: from the carry, from a sink, or empty.
template <class T>
void begin_rows(const Problem& p, std::int64_t batch, std::int64_t head, const Progression& rows,
                const SoftmaxTile<T>& t) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  const std::int64_t padded = round_up(rows.count, score_lanes<T>);
  std::fill(t.out, t.out + padded * p.shape.v_padded, T{});
  const bool sink = p.scores.sinks.data && !p.carry_lse.data;
  const T logit = sink ? p.scores.sinks.as<const T>()[head * p.scores.sinks.strides[0]] : nothing;
  std::fill(t.maximum, t.maximum + padded, logit);
  std::fill(t.sum, t.sum + padded, logit == nothing ? T{} : T(1));
  if (!p.carry_lse.data) return;
  const auto lse = gather(row_values<const T>(p.carry_lse, batch, head), rows);
  const auto out = gather(head_of<const T>(p.carry_out, batch, head), rows);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (*lse.row(i) == nothing) continue;
    t.maximum[i] = *lse.row(i);
    t.sum[i] = T(1);
    std::copy_n(out.row(i), p.shape.v_depth, t.out + i * p.shape.v_padded);
  }
}

template <class T, class S>
void write_out(const Problem& p, std::int64_t batch, std::int64_t head, const Progression& rows,
               const SoftmaxTile<T>& t) {
  const auto out = gather(head_of<S>(p.out, batch, head), rows);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T inverse = t.sum[i] == T{} ? T{} : T(1) / t.sum[i];
    for (std::int64_t j = 0; j < p.shape.v_depth; j += lanes<T>)
      simd::store_partial(out.row(i) + j, inverse * simd::load<T>(t.out + i * p.shape.v_padded + j),
                          p.shape.v_depth - j);
  }
}

template <class T>
void write_lse(const Problem& p, std::int64_t batch, std::int64_t head, const Progression& rows,
               const SoftmaxTile<T>& t) {
  const auto lse = gather(row_values<T>(p.lse, batch, head), rows);
  for (std::int64_t i = 0; i < rows.count; ++i) *lse.row(i) = t.maximum[i] + std::log(t.sum[i]);
}

/// Fills first and last of the rows [begin, end] from the intervals `low` and `high` of the two end rows. Neither end
/// of an interval decreases from one row to the next. Rows between two equal intervals therefore share them.
template <class T>
void fill_steps(const Visit<T>& visit, const SoftmaxTile<T>& t, std::int64_t begin, std::int64_t end, Interval low,
                Interval high) {
  const auto set = [&](std::int64_t row, Interval seen) {
    t.first[row] = static_cast<T>(seen.begin);
    t.last[row] = static_cast<T>(seen.end);
  };
  set(begin, low);
  set(end, high);
  if (low.begin == high.begin && low.end == high.end) {
    for (std::int64_t row = begin + 1; row < end; ++row) set(row, low);
  } else if (end - begin > 1) {
    const std::int64_t middle = begin + (end - begin) / 2;
    const Interval seen = visit.seen_by(middle);
    fill_steps(visit, t, begin, middle, low, seen);
    fill_steps(visit, t, middle, end, seen, high);
  }
}

/// Finds the steps of the run that each row sees: sets visit.full, or first and last.
template <class T>
void find_steps(Visit<T>& visit, const SoftmaxTile<T>& t) {
  const std::int64_t count = visit.rows.count;
  visit.full = visit.of.has(AttentionRun::whole);
  if (visit.full) return;
  // Stacked heads share one position: all of them are the only row.
  const Interval rows = visit.rows.step == 0 ? Interval{0, count} : visit.of.rows;
  const Interval low = visit.seen_by(rows.begin), high = visit.seen_by(rows.end - 1);
  visit.full = rows.begin == 0 && rows.end == count && high.begin == 0 && low.end == visit.run.count;
  if (visit.full) return;
  const std::int64_t padded = round_up(count, score_lanes<T>);
  std::fill(t.first, t.first + padded, T{});
  std::fill(t.last, t.last + padded, T{});
  fill_steps(visit, t, rows.begin, rows.end - 1, low, high);
  // Lanes beyond the last row repeat it, so they need no masks.
  std::fill(t.first + count, t.first + padded, t.first[count - 1]);
  std::fill(t.last + count, t.last + padded, t.last[count - 1]);
}

/// Calls f(run, keys, next) for the keys of all runs, one packed tile at a time, with the keys that follow.
template <class F>
void for_each_key_tile(std::span<const AttentionRun> runs, Interval rows_of_keys, const F& f) {
  const AttentionRun* of = nullptr;
  Progression keys{};
  for (const AttentionRun& run : runs) {
    const auto step_at = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(ceil_div(row - run.keys.row, run.keys.stride), 0, run.keys.count);
    };
    const std::int64_t end = step_at(rows_of_keys.end);
    for (std::int64_t step = step_at(rows_of_keys.begin); step < end; step += key_tile) {
      const Progression next = part_of(run.keys, step, std::min(end - step, key_tile));
      if (of) f(*of, keys, next);
      of = &run, keys = next;
    }
  }
  if (of) f(*of, keys, Progression{});
}

template <class S>
void load_queries(const Problem& p, Head<const S> q, std::int64_t count, const SoftmaxTile<Compute<S>>& t) {
  using T = Compute<S>;
  if (count <= direct_rows) {
    load_direct_queries<T>(t.queries, q, count, p.shape.depth, static_cast<T>(p.scores.scale));
    std::fill(t.scores, t.scores + key_room * score_lanes<T>, T{});  // also in lanes without a query
    return;
  }
  if constexpr (std::is_same_v<S, BFloat16>)
    if (t.pairs.product) return t.pairs.load_queries(q, count);
  pack_queries<T>(t.queries, q, {0, count}, p.shape.depth, static_cast<T>(p.scores.scale));
}

template <class S>
void load_keys(const Problem& p, Head<const S> k, Head<const S> v, const Progression& run,
               const SoftmaxTile<Compute<S>>& t) {
  using T = Compute<S>;
  if constexpr (std::is_same_v<S, BFloat16>)
    if (t.pairs.product) return t.pairs.load_keys(gather(k, run), gather(v, run), run.count);
  pack_keys<T>(t.keys, gather(k, run), {0, run.count}, p.shape.depth);
  pack_rows<T>(t.values, gather(v, run), {0, run.count}, p.shape.v_depth, key_room * group_lanes<T>);
}

/// Zeroes non-finite values in the packed operand.
template <class T>
void hide_wild_values(const SoftmaxTile<T>& t, const Visit<T>& visit) {
  for (std::int64_t n = 0; n < visit.wild.count; ++n) {
    if constexpr (std::is_same_v<T, float>)
      if (t.pairs.product) {
        clear_pair_row(t.pairs.values, visit.wild.row[n], visit.shape.v_padded);
        continue;
      }
    clear_packed_row(t.values, visit.wild.row[n], visit.shape.v_padded, key_room * group_lanes<T>);
  }
}

/// Visits all keys for one tile of queries of one head.
template <class S>
void attend_rows(const Problem& p, std::int64_t batch, std::int64_t head, const Progression& tile,
                 const AttentionTiles::Runs& visited, const SoftmaxTile<Compute<S>>& t) {
  using T = Compute<S>;
  const Progression rows = p.stacked ? Progression{0, 1, p.q.shape[1], tile.position, 0} : tile;
  const auto k = head_of<const S>(p.k, batch, p.kv_head(head)), v = head_of<const S>(p.v, batch, p.kv_head(head));
  load_queries<S>(p, gather(head_of<const S>(p.q, batch, head), rows), rows.count, t);
  begin_rows<T>(p, batch, head, rows, t);
  const auto rules = ScoreRules<T>::make(p.scores, batch, head);
  const auto meet = [&](const AttentionRun& of, const Progression& run, const Progression& next) {
    const auto in_memory =
        DirectOperands<T>::make(gather(k, run), gather(v, run), run.count, p.shape.depth, p.shape.v_depth);
    Visit<T> visit{p.shape,
                   visited.program,
                   of,
                   p.scores.first_head + head,
                   rows,
                   run,
                   Prefetch::make(k, next, p.shape.depth),
                   Prefetch::make(v, next, p.shape.v_depth),
                   in_memory,
                   rows.count <= direct_rows};
    find_steps(visit, t);
    if (rules.modifies() || rules.drops) visit.rules = &rules;
    if (of.period != 0) {
      visit.multiplicities = true;
      log_multiplicities(visited.program, of, run, t.multiplicity, round_up(run.count, rows_step));
    }
    if (!visit.direct) load_keys<S>(p, k, v, run, t);
    if (!visit.full || visit.hides_pairs()) {
      find_wild_rows(gather(v, run), run.count, p.shape.v_depth, visit.wild);
      if (!visit.direct) hide_wild_values(t, visit);
    }
    visit_keys(t, visit);
  };
  for_each_key_tile(visited.runs, p.keys, meet);
  if (p.out.dtype == p.q.dtype)
    write_out<T, S>(p, batch, head, rows, t);
  else if constexpr (!std::is_same_v<S, T>)
    write_out<T, T>(p, batch, head, rows, t);
  if (p.lse.data) write_lse<T>(p, batch, head, rows, t);
}

/// Turns the heads of a group with one query into queries of one head, so that they share keys and values.
void stack_heads(Problem& p, const AttentionSchedule& schedule) {
  const std::int64_t group = p.q.shape[2] / p.k.shape[2];
  const AttentionScores& scores = p.scores;
  if (p.q.shape[1] != 1 || group == 1 || group > direct_rows || scores.bias.data || scores.alibi.data ||
      scores.sinks.data || scores.dropout > 0 || schedule.head_period() != 1)
    return;
  p.stacked = true;
  for (View* view : {&p.q, &p.out, &p.carry_out}) {
    view->shape[1] = group;
    view->shape[2] = p.k.shape[2];
    view->strides[1] = view->strides[2];
    view->strides[2] *= group;
  }
  for (View* view : {&p.lse, &p.carry_lse}) {
    view->strides[2] = view->strides[1];
    view->strides[1] *= group;
  }
}

/// Work items in starting order, the longest first: each is a tile of queries in one head. Heads come in turns of
/// head_period heads. Items of the first and last turn may have heads outside the call; see has().
class Items {
 public:
  struct Item {
    std::int64_t batch, head, tile;
  };

  Items(const Problem& p, std::int64_t head_period, std::int64_t tiles)
      : first_head_(p.scores.first_head),
        heads_(p.q_heads()),
        head_period_(head_period),
        tiles_(tiles),
        turns_(ceil_div(first_head_ + heads_, head_period) - first_head_ / head_period),
        repeats_(p.q.shape[0] * turns_) {}

  std::int64_t count() const { return repeats_ * head_period_ * tiles_; }
  bool has(const Item& item) const { return item.head >= 0 && item.head < heads_; }
  /// The n-th item in the order of `program`, or by number without a program.
  Item at(std::int64_t n, const AttentionProgram* program) const {
    std::int64_t begin = 0, equal = head_period_ * tiles_, number = n % equal;
    if (program) {  // all heads of tiles of one length precede the next length
      const std::int32_t *levels = program->level_begin, *end = levels + program->levels;
      const std::int32_t* level = std::upper_bound(levels, end, n / repeats_) - 1;
      begin = level[0], equal = level[1] - begin;
      number = program->longest_first[begin + (n - begin * repeats_) % equal];
    }
    const std::int64_t repeat = (n - begin * repeats_) / equal, turn = first_head_ / head_period_ + repeat % turns_;
    return {repeat / turns_, turn * head_period_ + number / tiles_ - first_head_, number % tiles_};
  }

 private:
  std::int64_t first_head_, heads_, head_period_, tiles_, turns_, repeats_;
};

/// Partition of a call, from its operands alone, and its scratch in elements.
template <class T>
struct Plan {
  TileShape shape;
  std::int64_t heads;                // heads in all batch entries
  std::int64_t parts = 1;            // parts of the keys, split between items
  std::int64_t items = 0;            // number of Items, times parts
  std::int64_t tile = 0, owned = 0;  // scratch of a thread, and of all threads
  std::int64_t out = 0, lse = 0;     // result of a part

  template <class S>
  static Plan make(const View& q, const View& k, const View& v) {
    const std::int64_t depth = q.shape[3], v_depth = v.shape[3];
    Plan plan;
    plan.heads = q.shape[0] * q.shape[2];
    // Large tiles pack each key less often, while their queries and results fit the second-level cache. Enough tiles
    // keep every core busy.
    constexpr std::int64_t most = 384, bytes = 192 << 10;
    const PairProduct product = has_pairs && std::is_same_v<S, BFloat16> ? instruction_set_in_use().products : nullptr;
    const std::int64_t v_padded = round_up(v_depth, product ? pair_step : lanes<T>),
                       row_bytes = std::max<std::int64_t>(1, (depth + v_padded) * std::int64_t{sizeof(T)});
    std::int64_t limit = round_down(std::clamp<std::int64_t>(bytes / row_bytes, score_lanes<T>, most), score_lanes<T>);
    while (limit > score_lanes<T> && plan.heads * ceil_div(q.shape[1], limit) < enough_items)
      limit = round_up(limit / 2, score_lanes<T>);
    plan.shape = {limit, depth, v_depth, v_padded, product};
    plan.tile = SoftmaxTile<T>::carve(nullptr, plan.shape, nullptr);
    // Few queries of few heads, as in decoding, split the keys between items.
    constexpr std::int64_t worthwhile_keys = 2048;
    plan.parts = std::clamp<std::int64_t>(enough_items / (plan.heads * ceil_div(q.shape[1], limit)), 1,
                                          std::max<std::int64_t>(1, k.shape[1] / worthwhile_keys));
    if (plan.parts > 1) {
      plan.lse = round_up(plan.heads * q.shape[1], lanes<T>);
      plan.out = round_up(plan.heads * q.shape[1] * v_depth, lanes<T>);
    }
    return plan;
  }
  /// Sets the number of items and the scratch of their threads.
  void cut(std::int64_t count) {
    items = count * parts;
    owned = tile * std::min<std::int64_t>(num_threads(), items);
  }
  std::int64_t elements() const { return owned + parts * (out + lse); }

 private:
  static constexpr std::int64_t enough_items = 32;
};

/// A part of the keys, as a separate call.
struct PartOfKeys {
  AttentionScores scores;
  Problem problem;

  PartOfKeys(const Problem& whole, std::int64_t number, std::int64_t parts, const View& out, const View& lse)
      : scores(whole.scores), problem{scores, whole.q, whole.k, whole.v, out, lse} {
    const std::int64_t keys = whole.k.shape[1];
    problem.keys = {keys * number / parts, keys * (number + 1) / parts};
    problem.shape = whole.shape;
    problem.stacked = whole.stacked;
    if (number == 0) {
      problem.carry_out = whole.carry_out;
      problem.carry_lse = whole.carry_lse;
    } else {
      scores.sinks = {};
    }
  }
  PartOfKeys(const PartOfKeys&) = delete;
  PartOfKeys& operator=(const PartOfKeys&) = delete;
};

/// Merges out and lse of `parts` parts, `apart` elements apart, into those of the call.
template <class T, class S>
void merge_parts(const Problem& p, const View& first_out, const View& first_lse, std::int64_t parts,
                 std::int64_t apart) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  const std::int64_t rows = p.q.shape[1], heads = p.q_heads();
  parallel_ranges(p.q.shape[0] * heads * rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t row = n % rows, head = n / rows % heads, batch = n / rows / heads;
      const T* lse = row_values<const T>(first_lse, batch, head).row(row);
      const T* out = head_of<const T>(first_out, batch, head).row(row);
      T maximum = nothing, sum{};
      for (std::int64_t i = 0; i < parts; ++i) maximum = std::max(maximum, lse[i * apart]);
      const auto weight = [&](std::int64_t i) {  // exactly 0 for a part without visible keys
        return lse[i * apart] == nothing ? T{} : std::exp(lse[i * apart] - maximum);
      };
      for (std::int64_t i = 0; i < parts; ++i) sum += weight(i);
      S* to = head_of<S>(p.out, batch, head).row(row);
      for (std::int64_t j = 0; j < p.shape.v_depth; j += lanes<T>) {
        Vec<T> mean{};
        for (std::int64_t i = 0; i < parts; ++i)
          if (lse[i * apart] != nothing)
            mean += weight(i) / sum * simd::load_partial<T>(out + i * apart + j, p.shape.v_depth - j);
        simd::store_partial(to + j, mean, p.shape.v_depth - j);
      }
      if (p.lse.data) *row_values<T>(p.lse, batch, head).row(row) = sum == T{} ? nothing : maximum + std::log(sum);
    }
  });
}

/// Views of the first of `parts` results in one block of memory.
template <class T>
std::array<View, 2> result_in(T* memory, const Problem& p, const Plan<T>& plan) {
  const std::int64_t *n = p.q.shape, width = plan.shape.v_depth;
  return {View{memory, dtype_of<T>, 4, {n[0], n[1], n[2], width}, {n[1] * n[2] * width, n[2] * width, width, 1}},
          View{memory + plan.out, dtype_of<T>, 3, {n[0], n[2], n[1]}, {n[2] * n[1], n[1], 1}}};
}

template <class S>
void forward(Stream stream, const AttentionSchedule& schedule, Problem p, const on_cpu::Instead& instead) {
  using T = Compute<S>;
  auto plan = Plan<T>::template make<S>(p.q, p.k, p.v);
  p.shape = plan.shape;
  const Items items(p, schedule.head_period(), RowTiling(schedule, plan.shape.rows).tiles());
  plan.cut(items.count());
  const Workspace<T> memory(stream, "attention", plan.elements());
  if (instead) return instead();
  const AttentionTiles tiles(schedule, plan.shape.rows);
  T *const scratch = memory.data(), *const results = scratch + plan.owned;
  const std::int64_t parts = plan.parts, apart = plan.out + plan.lse;
  parallel_items(plan.items, [&](std::int64_t turn, int worker) {
    const Items::Item item = items.at(turn / parts, tiles.whole());
    const Progression rows = tiles.tile(item.tile);
    if (!items.has(item) || rows.count == 0) return;
    SoftmaxTile<T> tile;
    SoftmaxTile<T>::carve(scratch + plan.tile * worker, p.shape, &tile);
    tile.pairs.scale = static_cast<float>(p.scores.scale);
    AttentionTiles::Reader read(tiles);
    const AttentionTiles::Runs runs = read(p.scores.first_head + item.head, item.tile);
    if (parts == 1) return attend_rows<S>(p, item.batch, item.head, rows, runs, tile);
    const auto [out, lse] = result_in(results + turn % parts * apart, p, plan);
    attend_rows<S>(PartOfKeys(p, turn % parts, parts, out, lse).problem, item.batch, item.head, rows, runs, tile);
  });
  if (parts == 1) return;
  const auto [out, lse] = result_in(results, p, plan);
  if (p.out.dtype == p.q.dtype)
    merge_parts<T, S>(p, out, lse, parts, apart);
  else
    merge_parts<T, T>(p, out, lse, parts, apart);
}

}  // namespace

void POOLGRAD_VARIANT::attention_forward(Stream stream, const AttentionSchedule& schedule,
                                         const AttentionScores& scores, const View& q, const View& k, const View& v,
                                         const View& out, const View& lse, const View& carry_out, const View& carry_lse,
                                         const on_cpu::Instead& instead) {
  if (q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) {
    if (instead) instead();
    return;
  }
  Problem p{scores, q, k, v, out, lse, carry_out, carry_lse};
  stack_heads(p, schedule);
  with_floating_type(q.dtype, [&]<class S>(S) { forward<S>(stream, schedule, p, instead); });
}

std::int64_t POOLGRAD_VARIANT::attention_forward_scratch(const View& q, const View& k, const View& v) {
  if (q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) return 0;
  const AttentionSchedule schedule;
  const AttentionScores scores;
  Problem p{scores, q, k, v, {}, {}};
  stack_heads(p, schedule);
  return with_floating_type(q.dtype, [&]<class S>(S) {
    auto plan = Plan<Compute<S>>::template make<S>(p.q, p.k, p.v);
    plan.cut(num_threads());
    return plan.elements() * static_cast<std::int64_t>(sizeof(Compute<S>));
  });
}

}  // namespace poolgrad::kernels
