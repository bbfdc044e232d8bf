// Backward attention on the CPU over a schedule. Work is cut along key tiles; every element of dq, dk and dv is one
// chain of additions in the order of key tiles (dq) or of heads of the group and then queries (dk, dv), so how the
// items are cut changes no bit. Where there are heads enough for the threads, one item owns a whole head and visits
// each pair of tiles once (five products); otherwise items own key tiles for dk and dv, then ranges of queries for dq
// (seven products), and scratch does not grow with the length.
#include <numeric>
#include <vector>

#include "kernels/cpu/attention_backward_tile.h"
#include "kernels/cpu/attention_variants.h"
#include "kernels/cpu/attention_walk.h"
#include "kernels/cpu/workspace.h"
#include "kernels/dispatch.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

using namespace attention;

constexpr std::int64_t dq_bytes = std::int64_t{4} << 20;  // of dq in the compute type, for each thread

/// All pairs of these key tiles and query rows, for `heads` query heads from `head` on, which share one kv head.
struct Item {
  std::int64_t batch, head, heads;
  Range tiles, rows;
  bool want_keys, want_queries;  // gradients of
};

/// What a key tile visits in one query head.
struct Reach {
  double pairs = 0;
  std::int64_t begin = 0, end = 0;  // a range of query rows that holds them
};

/// Rows of a head, in T, to the rows of a gradient.
template <class T>
void write_rows(const View& to, std::int64_t batch, std::int64_t head, const Progression& rows, const T* from,
                std::int64_t padded, bool accumulate) {
  const std::int64_t columns = to.shape[3];
  with_storage<T>(to.dtype, [&]<class S>(S) {
    const auto out = gather(head_of<S>(to, batch, head), rows);
    for (std::int64_t i = 0; i < rows.count; ++i, from += padded)
      for (std::int64_t j = 0; j < columns; j += lanes<T>) {
        Vec<T> value = simd::load<T>(from + j);
        if (accumulate) value += simd::load_partial<T>(out.row(i) + j, columns - j);
        simd::store_partial(out.row(i) + j, value, columns - j);
      }
  });
}

template <class T>
class Backward {
 public:
  explicit Backward(const BackwardCall& call) : p_(call), tiling_(call.by_key, key_tile) {
    const View& dq = p_.gradients.dq;
    direct_ = dq.data && dq.dtype == dtype_of<T> && p_.padded == p_.depth;
  }

  void run() {
    const bool want_queries = p_.gradients.dq.data,
               want_keys = p_.gradients.dk.data || p_.gradients.dv.data || p_.gradients.dbias.data;
    if (p_.gradients.dbias.data && !p_.gradients.accumulate) clear_dbias();
    find_reach();
    const std::int64_t tiles = tiling_.tiles(), heads = p_.q.shape[0] * p_.kv_heads, threads = num_threads();
    const std::int64_t rounds = (heads + threads - 1) / threads;  // of whole heads
    const std::int64_t whole = direct_ ? 0 : p_.group * p_.queries;
    if (want_queries && want_keys && 5 * rounds * threads <= 7 * heads && bytes(whole) <= dq_bytes) {
      std::vector<Item> items;
      for (std::int64_t n = 0; n < heads; ++n)
        items.push_back(
            {n / p_.kv_heads, n % p_.kv_heads * p_.group, p_.group, {0, tiles}, {0, p_.queries}, true, true});
      return run_items(items, whole);
    }
    if (want_keys) {
      std::vector<Item> items;
      for (std::int64_t n = 0; n < heads; ++n)
        for (std::int64_t t = 0; t < tiles; ++t)
          items.push_back(
              {n / p_.kv_heads, n % p_.kv_heads * p_.group, p_.group, {t, t + 1}, {0, p_.queries}, true, false});
      run_items(items, 0);
    }
    if (want_queries) {
      // Enough ranges to keep every thread busy to the end, long enough that walking the key tiles costs little.
      const std::int64_t all = p_.q.shape[0] * p_.q_heads, ranges = std::max<std::int64_t>(1, 8 * threads / all);
      std::int64_t length = std::max<std::int64_t>(4 * query_tile<T>, (p_.queries + ranges - 1) / ranges);
      if (!direct_) length = std::max<std::int64_t>(1, std::min(length, dq_bytes / bytes(1)));
      std::vector<Item> items;
      for (std::int64_t n = 0; n < all; ++n)
        for (std::int64_t row = 0; row < p_.queries; row += length)
          items.push_back(
              {n / p_.q_heads, n % p_.q_heads, 1, {0, tiles}, {row, std::min(row + length, p_.queries)}, false, true});
      run_items(items, direct_ ? 0 : std::min(length, p_.queries));
    }
  }

 private:
  std::int64_t bytes(std::int64_t dq_rows) const { return dq_rows * p_.padded * static_cast<std::int64_t>(sizeof(T)); }
  const Reach& reach(std::int64_t head, std::int64_t tile) const {
    return reach_[static_cast<std::size_t>(head * tiling_.tiles() + tile)];
  }

  void clear_dbias() {
    const View& d = p_.gradients.dbias;
    parallel_ranges(d.shape[0] * d.shape[1] * d.shape[2], 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* row = d.as<T>() + i / d.shape[2] / d.shape[1] * d.strides[0] + i / d.shape[2] % d.shape[1] * d.strides[1] +
                 i % d.shape[2] * d.strides[2];
        for (std::int64_t j = 0; j < d.shape[3]; ++j) row[j * d.strides[3]] = T{};
      }
    });
  }

  void find_reach() {
    const std::int64_t tiles = tiling_.tiles();
    reach_.resize(static_cast<std::size_t>(p_.q_heads * tiles));
    parallel_ranges(p_.q_heads * tiles, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        Reach& found = reach_[static_cast<std::size_t>(n)];
        const Progression keys = tiling_.tile(n % tiles);
        walk_key_tiles(p_.by_key, p_.scores.first_head + n / tiles, keys, unbounded,
                       [&](const Strip&, const Progression& run) {
                         const std::int64_t last = run.row + (run.count - 1) * run.stride + 1;
                         found.begin = found.pairs == 0 ? run.row : std::min(found.begin, run.row);
                         found.end = std::max(found.end, last);
                         found.pairs += static_cast<double>(keys.count) * static_cast<double>(run.count);
                       });
      }
    });
  }

  /// The pairs of an item, roughly.
  double cost(const Item& item) const {
    double pairs = 0;
    for (std::int64_t h = item.head; h < item.head + item.heads; ++h)
      for (std::int64_t t = item.tiles.begin; t < item.tiles.end; ++t) {
        const Reach& r = reach(h, t);
        const Range shared = intersect({r.begin, r.end}, item.rows);
        if (r.pairs > 0)
          pairs += r.pairs * static_cast<double>(shared.end - shared.begin) / static_cast<double>(r.end - r.begin);
      }
    return pairs;
  }

  void run_items(const std::vector<Item>& items, std::int64_t dq_rows) {
    const auto count = static_cast<std::int64_t>(items.size());
    std::vector<double> costs(items.size());
    parallel_ranges(count, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        costs[static_cast<std::size_t>(i)] = cost(items[static_cast<std::size_t>(i)]);
    });
    std::vector<std::size_t> order(items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
    const std::int64_t size = TileScratch<T>::carve(nullptr, p_, dq_rows, nullptr);
    const Workspace<T> memory("attention", size * std::min<std::int64_t>(num_threads(), count));
    parallel_items(count, [&](std::int64_t n, int worker) {
      TileScratch<T> scratch;
      TileScratch<T>::carve(memory.data() + size * worker, p_, dq_rows, &scratch);
      run_item(items[order[static_cast<std::size_t>(n)]], scratch);
    });
  }

  /// Row 0 of what dq of this head is summed up in, and the distance of its rows.
  std::pair<T*, std::int64_t> dq_of(const Item& item, std::int64_t head, const TileScratch<T>& s) const {
    if (direct_) {
      const auto rows = head_of<T>(p_.gradients.dq, item.batch, head);
      return {rows.data, rows.stride};
    }
    const std::int64_t rows = item.rows.end - item.rows.begin;
    return {s.dq + ((head - item.head) * rows - item.rows.begin) * p_.padded, p_.padded};
  }

  void run_item(const Item& item, const TileScratch<T>& s) const {
    const bool accumulate = p_.gradients.accumulate;
    if (item.want_queries && !(direct_ && accumulate))
      for (std::int64_t h = item.head; h < item.head + item.heads; ++h) {
        const auto [dq, stride] = dq_of(item, h, s);
        for (std::int64_t i = item.rows.begin; i < item.rows.end; ++i) std::fill_n(dq + i * stride, p_.padded, T{});
      }
    for (std::int64_t t = item.tiles.begin; t < item.tiles.end; ++t) visit_tile(item, t, s);
    if (item.want_queries && !direct_)
      for (std::int64_t h = item.head; h < item.head + item.heads; ++h) {
        const std::int64_t rows = item.rows.end - item.rows.begin;
        write_rows(p_.gradients.dq, item.batch, h, {item.rows.begin, 1, rows, 0, 1},
                   s.dq + (h - item.head) * rows * p_.padded, p_.padded, accumulate);
      }
  }

  void visit_tile(const Item& item, std::int64_t number, const TileScratch<T>& s) const {
    const Progression keys = tiling_.tile(number);
    if (keys.count == 0) return;
    const std::int64_t kv_head = item.head / p_.group;
    if (item.want_keys) {
      std::fill_n(s.dk, key_tile * p_.padded, T{});
      std::fill_n(s.dv, key_tile * p_.v_padded, T{});
    }
    bool loaded = false;
    for (std::int64_t h = item.head; h < item.head + item.heads; ++h) {
      const Reach& r = reach(h, number);
      if (r.pairs == 0 || r.end <= item.rows.begin || r.begin >= item.rows.end) continue;
      if (!loaded) load_keys(item, kv_head, keys, s);
      loaded = true;
      walk_key_tiles(p_.by_key, p_.scores.first_head + h, keys, unbounded,
                     [&](const Strip& strip, const Progression& run) { visit_run(item, h, keys, strip, run, s); });
    }
    if (!item.want_keys) return;
    const AttentionGradients& g = p_.gradients;
    if (g.dk.data) write_rows(g.dk, item.batch, kv_head, keys, s.dk, p_.padded, g.accumulate);
    if (g.dv.data) write_rows(g.dv, item.batch, kv_head, keys, s.dv, p_.v_padded, g.accumulate);
  }

  void load_keys(const Item& item, std::int64_t kv_head, const Progression& keys, const TileScratch<T>& s) const {
    const Range all{0, keys.count};
    with_storage<T>(p_.k.dtype, [&]<class S>(S) {
      const auto k = gather(head_of<const S>(p_.k, item.batch, kv_head), keys);
      pack_keys<T>(s.keys, k, all, p_.depth);
      if (item.want_queries) copy_rows<T>(s.key_rows, k, all, p_.depth, p_.padded);
    });
    with_storage<T>(p_.v.dtype, [&]<class S>(S) {
      pack_keys<T>(s.values, gather(head_of<const S>(p_.v, item.batch, kv_head), keys), all, p_.v_depth);
    });
  }

  void visit_run(const Item& item, std::int64_t head, const Progression& keys, const Strip& strip,
                 const Progression& run, const TileScratch<T>& s) const {
    // Steps of the run whose rows belong to the item, and of those the ones that some key sees.
    const auto step_at = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(ceil_div(row - run.row, run.stride), 0, run.count);
    };
    Interval part{run.count, 0}, seen[key_tile];
    for (std::int64_t k = 0; k < keys.count; ++k) {
      seen[k] = steps_seen(strip, run, keys.position + k * keys.step);
      if (seen[k].begin >= seen[k].end) continue;
      part.begin = std::min(part.begin, seen[k].begin);
      part.end = std::max(part.end, seen[k].end);
    }
    part.begin = std::max(part.begin, step_at(item.rows.begin));
    part.end = std::min(part.end, step_at(item.rows.end));
    const auto rules = ScoreRules<T>::make(p_.scores, item.batch, head);
    const auto [dq, stride] = item.want_queries ? dq_of(item, head, s) : std::pair<T*, std::int64_t>{};
    TilePair<T> pair;
    pair.keys = keys;
    pair.strip = &strip;
    pair.batch = item.batch;
    pair.head = head;
    pair.want_keys = item.want_keys;
    pair.want_queries = item.want_queries;
    for (std::int64_t step = part.begin; step < part.end; step += query_tile<T>) {
      pair.queries = part_of(run, step, std::min<std::int64_t>(part.end - step, query_tile<T>));
      pair.set_intervals(seen, step);
      load_queries(p_, pair, s);
      for (std::int64_t lane = 0; lane < pair.queries.count; lane += group_lanes<T>)
        score_group(p_, pair, s, rules, lane);
      if (item.want_keys) add_key_gradients(p_, pair, s);
      if (item.want_queries)
        add_query_gradients(p_, pair, s, dq + pair.queries.row * stride, pair.queries.stride * stride);
    }
  }

  const BackwardCall& p_;
  RowTiling tiling_;
  bool direct_ = false;  // dq is summed up in place
  std::vector<Reach> reach_;
};

}  // namespace

void POOLGRAD_VARIANT::attention_backward(Stream stream, const AttentionSchedule& schedule,
                                          const AttentionScores& scores, View q, View k, View v, View lse, View delta,
                                          View grad_out, const AttentionGradients& gradients) {
  Cost cost;
  if (stream.device.is_sim()) {
    cost = traffic(q, k, v, lse, delta, grad_out, gradients.dq, gradients.dk, gradients.dv, gradients.dbias);
    cost.operations = 3.5 * 2.0 * static_cast<double>(q.shape[3] + v.shape[3]) * static_cast<double>(q.shape[0]) *
                      schedule.count_pairs();
  }
  if (!runs_on_cpu(stream, "attention backward", cost)) return;
  if (q.shape[0] == 0 || q.shape[2] == 0) return;
  const bool wide = q.dtype == DType::f64;
  const std::int64_t depth = q.shape[3], v_depth = v.shape[3], vector = wide ? lanes<double> : lanes<float>;
  const BackwardCall call{schedule.transposed(),
                          scores,
                          q,
                          k,
                          v,
                          lse,
                          delta,
                          grad_out,
                          gradients,
                          q.shape[1],
                          q.shape[2],
                          k.shape[2],
                          q.shape[2] / k.shape[2],
                          depth,
                          v_depth,
                          round_up(depth, vector),
                          round_up(v_depth, vector)};
  if (wide)
    Backward<double>(call).run();
  else
    Backward<float>(call).run();
}

}  // namespace poolgrad::kernels
