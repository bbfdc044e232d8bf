// Backward attention on the CPU over a schedule. Key tiles divide the work. Every element of dq, dk and dv is one chain
// of additions, so the partition changes no bit. dq adds in the order of key tiles; dk and dv add by head of the group,
// then by query. There are three partitions, and a call uses the one with the shortest estimated time:
//   heads       an item owns a whole head and visits each pair of tiles once: five products
//   wavefront   an item owns a key tile, and adds its part of dq after the previous key tile: five products
//   two passes  items own key tiles for dk and dv, then ranges of queries for dq: seven products
//
// dq accumulates in place if its type and width allow, otherwise in scratch. If several threads add to a head, scratch
// holds all its rows. Otherwise it holds only the rows in progress: few for a local pattern, for any length.
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <utility>

#include "kernels/cpu/attention/backward_tile.h"
#include "kernels/cpu/attention/variants.h"
#include "kernels/cpu/attention/wavefront.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using namespace attention;

/// Limits of dq scratch per thread: for whole heads, and for ranges of queries if a head is too large.
constexpr std::int64_t head_bytes = std::int64_t{4} << 20, range_bytes = std::int64_t{512} << 10;

/// All pairs of these key tiles and query rows, for `heads` query heads from `head` on, which share one kv head.
struct Item {
  std::int64_t batch, head, heads;
  Range tiles, rows;
  bool want_keys = true, want_queries = true;  // wanted gradients
  const Wavefront::Turn* turn = nullptr;       // set if other items add to dq before and after this key tile
};

template <class T>
class Backward {
 public:
  Backward(Stream stream, const AttentionSchedule& by_key, const BackwardCall& call)
      : stream_(stream),
        p_(call),
        tiles_(by_key, owned_keys, true),
        reach_(stream, tiles_, call.scores.first_head, call.q_heads),
        direct_(call.gradients.dq.data && call.gradients.dq.dtype == dtype_of<T> && call.padded == call.depth) {}

  void run(const on_cpu::Instead& instead) {
    const Plan plan = make_plan();
    const Memory memory(stream_, p_, plan);
    if (instead) return instead();
    if (p_.gradients.dbias.data && !p_.gradients.accumulate) clear_dbias();
    if (plan.way == Way::heads) return run_heads(plan, memory);
    if (plan.way == Way::wavefront) return run_wavefront(plan, memory);
    run_passes(plan, memory);
  }

  /// Bytes of each allocation that run() makes. For dq scratch and pattern-dependent scratch it is a bound that holds
  /// for almost every pattern.
  static std::array<std::int64_t, 3> most_scratch(const BackwardCall& p) {
    const std::int64_t threads = num_threads(), heads = p.q.shape[0] * p.q_heads, row = p.padded * size,
                       tiles = 8 * (ceil_div(p.k.shape[1], owned_keys) + 1), runs = 64;
    const bool sums = p.padded != p.depth || p.q.dtype != dtype_of<T>;
    const std::int64_t group = p.group * p.queries * row, groups = std::max(threads, p.q.shape[0] * p.kv_heads);
    const std::int64_t dq = sums ? std::min(groups * group, threads * head_bytes) : 0;
    const std::int64_t items = std::max(heads * tiles, heads * ceil_div(p.queries * row, range_bytes) + 8 * threads);
    return {p.q_heads * tiles * std::int64_t{sizeof(AttentionReach::Reach)},
            WavefrontLength::elements(p.q_heads * tiles, runs, threads) * std::int64_t{sizeof(double)},
            threads * TileScratch<T>::carve(nullptr, p, 0, nullptr) * size + dq + items * Memory::item_bytes};
  }

 private:
  static constexpr std::int64_t size = sizeof(T);
  enum class Way { heads, wavefront, passes };

  /// Partition of the call, and its scratch.
  struct Plan {
    Way way = Way::passes;
    std::int64_t heads = 0;               // key heads in all batch entries
    std::int64_t capacity = 0;            // rows of dq accumulated at a time
    std::int64_t items = 0;               // items in flight together
    std::int64_t dq_rows = 0;             // rows of dq scratch per thread
    std::int64_t shared = 0;              // elements of dq scratch that several threads add to
    std::int64_t at_once = 0;             // wavefront: heads at once
    std::int64_t length = 1, ranges = 0;  // passes: ranges of queries
  };

  bool wants_keys() const { return p_.gradients.dk.data || p_.gradients.dv.data || p_.gradients.dbias.data; }
  bool wants_queries() const { return p_.gradients.dq.data; }

  Plan make_plan() const {
    Plan plan;
    plan.heads = p_.q.shape[0] * p_.kv_heads;
    // Room for twice the rows in progress: rows then move to the front only once.
    plan.capacity = std::clamp<std::int64_t>(2 * reach_.span(), 1, std::max<std::int64_t>(1, p_.queries));
    if (wants_queries() && wants_keys()) plan.way = best_way(plan.heads, plan.capacity);
    const std::int64_t tiles = tiles_.count();
    if (plan.way == Way::heads) {
      plan.items = plan.heads;
      plan.dq_rows = direct_ ? 0 : p_.group * plan.capacity;
    } else if (plan.way == Way::wavefront) {
      plan.at_once = heads_under_way(plan.heads);
      plan.items = plan.at_once * tiles;
      plan.shared = direct_ ? 0 : plan.at_once * p_.group * p_.queries * p_.padded;
    } else {
      // Ranges of queries: enough to keep every thread busy to the end, but long enough to keep the cost of visiting
      // key tiles low.
      const std::int64_t all = p_.q.shape[0] * p_.q_heads, wanted = std::max<std::int64_t>(1, 8 * num_threads() / all);
      plan.length = std::max<std::int64_t>(4 * query_tile<T>, ceil_div(p_.queries, wanted));
      if (!direct_ && bytes(plan.capacity) > range_bytes)
        plan.length = std::max<std::int64_t>(1, std::min(plan.length, range_bytes / bytes(1)));
      plan.ranges = ceil_div(p_.queries, plan.length);
      plan.capacity = std::min(plan.length, plan.capacity);
      plan.items = std::max(plan.heads * tiles, all * plan.ranges);
      plan.dq_rows = direct_ || !wants_queries() ? 0 : plan.capacity;
    }
    return plan;
  }

  /// Returns the partition with the shortest estimated time, in products of pairs on one thread.
  Way best_way(std::int64_t heads, std::int64_t capacity) const {
    const std::int64_t threads = num_threads(), rounds = ceil_div(heads, threads);
    const bool owns = direct_ || p_.group * bytes(capacity) <= head_bytes;
    if (owns && rounds * threads == heads) return Way::heads;
    double pairs = 0;
    for (std::int64_t h = 0; h < p_.q_heads; ++h)
      pairs += static_cast<double>(p_.q.shape[0]) * reach_.pairs(h, {0, reach_.tiles()}, {0, p_.queries});
    Way best = Way::passes;
    double least = 7 * pairs / static_cast<double>(threads);
    const auto consider = [&](Way way, double time) {
      if (time < least) best = way, least = time;
    };
    if (owns) consider(Way::heads, 5 * pairs * static_cast<double>(rounds) / static_cast<double>(heads));
    // Waiting threads cost a little more than the estimate.
    if (heads_under_way(heads) > 0) consider(Way::wavefront, 1.05 * 5 * wavefront_length(heads));
    return best;
  }

  /// Heads whose key tiles run in one wavefront: as many as scratch allows.
  std::int64_t heads_under_way(std::int64_t heads) const {
    if (direct_) return heads;
    return std::min(heads, num_threads() * head_bytes / std::max<std::int64_t>(1, p_.group * bytes(p_.queries)));
  }
  double wavefront_length(std::int64_t heads) const {
    const WavefrontLength length(stream_, reach_, tiles_, p_.scores.first_head, p_.q_heads, p_.group, query_tile<T>,
                                 num_threads());
    const std::int64_t most = heads_under_way(heads);
    double sum = 0;
    for (std::int64_t head = 0; head < heads; head += most)
      sum += length.of({head, std::min(head + most, heads)}, num_threads());
    return sum;
  }

  /// Memory of a call: the scratch of every thread, the elements shared by all threads, and one entry per item.
  class Memory {
   public:
    struct Item {
      double cost;
      std::int64_t number;
    };
    static constexpr std::int64_t item_bytes = std::max(sizeof(Item), sizeof(std::atomic<std::int64_t>));

    Memory(Stream stream, const BackwardCall& p, const Plan& plan)
        : p_(p),
          dq_rows_(plan.dq_rows),
          size_(TileScratch<T>::carve(nullptr, p, dq_rows_, nullptr)),
          owned_(size_ * std::min<std::int64_t>(num_threads(), plan.items)),
          of_items_(round_up(ceil_div(plan.items * item_bytes, size), 64)),
          workspace_(stream, "attention", of_items_ + owned_ + plan.shared) {}

    TileScratch<T> of(int worker) const {
      TileScratch<T> scratch;
      TileScratch<T>::carve(workspace_.data() + of_items_ + size_ * worker, p_, dq_rows_, &scratch);
      return scratch;
    }
    T* shared() const { return workspace_.data() + of_items_ + owned_; }
    template <class X>
    X* of_items() const {
      return reinterpret_cast<X*>(workspace_.data());
    }

   private:
    const BackwardCall& p_;
    std::int64_t dq_rows_, size_, owned_, of_items_;
    Workspace<T> workspace_;
  };

  void run_heads(const Plan& plan, const Memory& memory) const {
    run_items(memory, plan.heads, plan.capacity, [&](std::int64_t n) {
      return Item{n / p_.kv_heads, n % p_.kv_heads * p_.group, p_.group, {0, tiles_.count()}, {0, p_.queries}};
    });
  }

  void run_wavefront(const Plan& plan, const Memory& memory) const {
    const std::int64_t tiles = tiles_.count(), rows = p_.group * p_.queries, slot = direct_ ? 0 : rows * p_.padded;
    for (std::int64_t first = 0; first < plan.heads; first += plan.at_once) {
      const std::int64_t items = std::min(plan.at_once, plan.heads - first) * tiles;
      Wavefront front(memory.template of_items<std::atomic<std::int64_t>>(), items, rows);
      parallel_items(items, [&](std::int64_t n, int worker) {
        const std::int64_t head = first + n / tiles, tile = n % tiles;
        const Wavefront::Turn turn(front, n, tile > 0 ? n - 1 : -1);
        TileScratch<T> scratch = memory.of(worker);
        scratch.dq = memory.shared() + n / tiles * slot;
        Item item{head / p_.kv_heads, head % p_.kv_heads * p_.group, p_.group, {tile, tile + 1}, {0, p_.queries}};
        item.turn = &turn;
        run_item(item, p_.queries, scratch);
      });
    }
  }

  void run_passes(const Plan& plan, const Memory& memory) const {
    const std::int64_t tiles = tiles_.count();
    const Range all_tiles{0, tiles}, all_rows{0, p_.queries};
    if (wants_keys())
      run_items(memory, plan.heads * tiles, 0, [&](std::int64_t n) {
        const std::int64_t head = n / tiles, tile = n % tiles;
        const Range one{tile, tile + 1};
        return Item{head / p_.kv_heads, head % p_.kv_heads * p_.group, p_.group, one, all_rows, true, false};
      });
    if (wants_queries())
      run_items(memory, p_.q.shape[0] * p_.q_heads * plan.ranges, plan.capacity, [&](std::int64_t n) {
        const std::int64_t head = n / plan.ranges, row = n % plan.ranges * plan.length;
        const Range rows{row, std::min(row + plan.length, p_.queries)};
        return Item{head / p_.q_heads, head % p_.q_heads, 1, all_tiles, rows, false, true};
      });
  }

  std::int64_t bytes(std::int64_t rows) const { return rows * std::max<std::int64_t>(1, p_.padded) * size; }

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

  /// Runs item_of(n) for every n < count, longest first. Each item accumulates dq of its heads with room for `capacity`
  /// rows.
  template <class ItemOf>
  void run_items(const Memory& memory, std::int64_t count, std::int64_t capacity, const ItemOf& item_of) const {
    auto* const items = memory.template of_items<typename Memory::Item>();
    parallel_ranges(count, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Item item = item_of(n);
        double cost = 0;
        for (std::int64_t h = item.head; h < item.head + item.heads; ++h)
          cost += reach_.pairs(h, {item.tiles.begin, item.tiles.end}, {item.rows.begin, item.rows.end});
        items[n] = {cost, n};
      }
    });
    std::sort(items, items + count,
              [](const auto& a, const auto& b) { return a.cost != b.cost ? a.cost > b.cost : a.number < b.number; });
    parallel_items(
        count, [&](std::int64_t n, int worker) { run_item(item_of(items[n].number), capacity, memory.of(worker)); });
  }

  void run_item(const Item& item, std::int64_t capacity, const TileScratch<T>& s) const {
    const std::span dq(s.rows, static_cast<std::size_t>(item.want_queries ? item.heads : 0));
    for (std::size_t n = 0; n < dq.size(); ++n)
      std::construct_at(&dq[n], rows_of_head(item, static_cast<std::int64_t>(n), capacity, s));
    AttentionTiles::Reader read(tiles_);
    for (std::int64_t t = item.tiles.begin; t < item.tiles.end; ++t) visit_tile(item, t, read, dq, s);
    if (item.turn) item.turn->wait(item.heads * p_.queries);
    for (QueryRows<T>& rows : dq) {
      const bool last = item.tiles.end == tiles_.count();
      rows.leave(std::min(last ? p_.queries : reach_.at(rows.head, item.tiles.end).complete, item.rows.end));
    }
  }

  QueryRows<T> rows_of_head(const Item& item, std::int64_t n, std::int64_t capacity, const TileScratch<T>& s) const {
    const std::int64_t begin = item.rows.begin;
    QueryRows<T> rows{&p_, item.batch, item.head + n, direct_, nullptr, p_.padded, capacity, begin, begin, begin};
    if (direct_) {
      const auto out = head_of<T>(p_.gradients.dq, item.batch, rows.head);
      rows.data = out.data;
      rows.stride = out.stride;
      rows.capacity = p_.queries;
      rows.origin = 0;
    } else {
      rows.data = s.dq + n * capacity * p_.padded;
    }
    if (item.turn && item.tiles.begin > 0) {
      const auto& reach = reach_.at(rows.head, item.tiles.begin);
      rows.done = reach.complete;
      rows.entered = std::max(reach.complete, reach.entered);
    }
    return rows;
  }

  void visit_tile(const Item& item, std::int64_t number, AttentionTiles::Reader& read, std::span<QueryRows<T>> dq,
                  const TileScratch<T>& s) const {
    const Progression keys = tiles_.tile(number);
    if (keys.count == 0) return;
    const std::int64_t kv_head = item.head / p_.group;
    if (item.want_keys) {
      std::fill_n(s.dk, round_up(keys.count, rows_step) * p_.padded, T{});
      std::fill_n(s.dv, round_up(keys.count, rows_step) * p_.v_padded, T{});
    }
    bool loaded = false;
    for (std::int64_t n = 0; n < item.heads; ++n) {
      const std::int64_t h = item.head + n;
      const auto& reach = reach_.at(h, number);
      if (reach.pairs == 0 || reach.end <= item.rows.begin || reach.begin >= item.rows.end) continue;
      if (!loaded) load_keys(item, kv_head, keys, s);
      loaded = true;
      QueryRows<T>* rows = item.want_queries ? &dq[static_cast<std::size_t>(n)] : nullptr;
      if (item.turn) {
        item.turn->wait(n * p_.queries);
        item.turn->pass(n * p_.queries, n * p_.queries);
      }
      if (rows) {
        rows->leave(std::min(reach.complete, item.rows.end));
        rows->enter(std::min(reach.end, item.rows.end));
      }
      const auto [program, runs] = read(p_.scores.first_head + h, number);
      for (const AttentionRun& run : runs) visit_run(item, h, keys, program, run, reach, rows, s);
    }
    if (!item.want_keys) return;
    const AttentionGradients& g = p_.gradients;
    if (g.dk.data) write_rows(g.dk, item.batch, kv_head, keys, s.dk, p_.padded, g.accumulate);
    if (g.dv.data) write_rows(g.dv, item.batch, kv_head, keys, s.dv, p_.v_padded, g.accumulate);
  }

  void load_keys(const Item& item, std::int64_t kv_head, const Progression& keys, const TileScratch<T>& s) const {
    pack_keys_and_values(item, kv_head, keys, s);
    s.wild_keys->count = 0;
    if (!item.want_queries) return;
    with_storage<T>(p_.k.dtype, [&]<class S>(S) {
      find_wild_rows(gather(head_of<const S>(p_.k, item.batch, kv_head), keys), keys.count, p_.depth, *s.wild_keys);
    });
    for (std::int64_t n = 0; n < s.wild_keys->count; ++n)
      if (s.pairs.product)
        clear_pair_row(s.pairs.key_pairs, s.wild_keys->row[n], p_.padded);
      else
        clear_packed_row(s.key_rows, s.wild_keys->row[n], p_.padded, key_panel<T>);
  }

  void pack_keys_and_values(const Item& item, std::int64_t kv_head, const Progression& keys,
                            const TileScratch<T>& s) const {
    if constexpr (std::is_same_v<T, float>)
      if (s.pairs.product)
        return s.pairs.load_keys(gather(head_of<const BFloat16>(p_.k, item.batch, kv_head), keys),
                                 gather(head_of<const BFloat16>(p_.v, item.batch, kv_head), keys), keys.count);
    const Range all{0, keys.count};
    with_storage<T>(p_.k.dtype, [&]<class S>(S) {
      const auto k = gather(head_of<const S>(p_.k, item.batch, kv_head), keys);
      pack_keys<T>(s.keys, k, all, p_.depth);
      if (item.want_queries) pack_rows<T>(s.key_rows, k, all, p_.depth, key_panel<T>);
    });
    with_storage<T>(p_.v.dtype, [&]<class S>(S) {
      pack_keys<T>(s.values, gather(head_of<const S>(p_.v, item.batch, kv_head), keys), all, p_.v_depth);
    });
  }

  void visit_run(const Item& item, std::int64_t head, const Progression& keys, const AttentionProgram& program,
                 const AttentionRun& run, const AttentionReach::Reach& reach, const QueryRows<T>* dq,
                 const TileScratch<T>& s) const {
    // Steps of the run with rows of the item, and among them the steps that some key sees.
    const Progression& queries = run.keys;
    const auto step_at = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(ceil_div(row - queries.row, queries.stride), 0, queries.count);
    };
    const bool whole = run.has(AttentionRun::whole);
    Interval part{queries.count, 0}, seen[owned_keys];
    for (std::int64_t k = 0; k < keys.count; ++k) {
      seen[k] = whole                  ? Interval{0, queries.count}
                : run.rows.contains(k) ? program.steps_seen(run, queries, keys.position + k * keys.step)
                                       : Interval{0, 0};
      if (seen[k].empty()) continue;
      part.begin = std::min(part.begin, seen[k].begin);
      part.end = std::max(part.end, seen[k].end);
    }
    part = part & Interval{step_at(item.rows.begin), step_at(item.rows.end)};
    const auto rules = ScoreRules<T>::make(p_.scores, item.batch, head);
    TilePair<T> pair;
    pair.keys = keys;
    pair.rules = &rules;
    pair.program = &program;
    pair.run = &run;
    pair.batch = item.batch;
    pair.head = head;
    pair.want_keys = item.want_keys;
    for (std::int64_t step = part.begin; step < part.end; step += pair.queries.count) {
      const std::int64_t count = std::min<std::int64_t>(part.end - step, query_tile<T>);
      pair.queries = part_of(queries, step, count);
      pair.set_intervals(seen, step);
      load_queries(p_, pair, s);
      if constexpr (std::is_same_v<T, float>)
        if (s.pairs.product) s.pairs.score(s.weights, s.scores, keys.count, pair.queries.count);
      for (std::int64_t lane = 0; lane < count; lane += group_lanes<T>) score_group(p_, pair, s, lane);
      if (s.pairs.product) clear_unseen(pair, s);
      if (item.want_keys) {
        add_key_gradients(p_, pair, s);
        add_wild_queries(p_, pair, s);
      }
      if (!dq) continue;
      const std::int64_t row = pair.queries.row, end = row + (count - 1) * queries.stride + 1;
      const std::int64_t passed = (head - item.head) * p_.queries;  // rows of the previous heads
      const std::int64_t shared = passed + std::min(end, reach.entered);
      if (item.turn && row < reach.entered) item.turn->wait(shared);
      add_query_gradients(p_, pair, s, dq->row(row), queries.stride * dq->stride);
      add_wild_keys(p_, pair, s, dq->row(row), queries.stride * dq->stride);
      if (item.turn && reach.ascending) item.turn->pass(passed + end, shared);
    }
  }

  const Stream stream_;
  const BackwardCall& p_;
  const AttentionTiles tiles_;
  const AttentionReach reach_;
  const bool direct_;  // dq accumulates in place
};

BackwardCall make_call(const AttentionScores& scores, View q, View k, View v, View lse, View delta, View grad_out,
                       const AttentionGradients& gradients) {
  const bool all_bf16 = has_pairs && q.dtype == DType::bf16 && k.dtype == DType::bf16 && v.dtype == DType::bf16 &&
                        grad_out.data && grad_out.dtype == DType::bf16;
  const PairProduct product = all_bf16 ? instruction_set_in_use().products : nullptr;
  return {scores, q, k, v, lse, delta, grad_out, gradients, product};
}

}  // namespace

void POOLGRAD_VARIANT::attention_backward(Stream stream, const AttentionSchedule& schedule,
                                          const AttentionScores& scores, const View& q, const View& k, const View& v,
                                          const View& lse, const View& delta, const View& grad_out,
                                          const AttentionGradients& gradients, const on_cpu::Instead& instead) {
  const BackwardCall call = make_call(scores, q, k, v, lse, delta, grad_out, gradients);
  const AttentionSchedule by_key = schedule.transposed();
  with_floating_compute_type(q.dtype, [&]<class T>(T) { Backward<T>(stream, by_key, call).run(instead); });
}

std::array<std::int64_t, 3> POOLGRAD_VARIANT::attention_backward_scratch(const View& q, const View& k, const View& v) {
  if (q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) return {};
  AttentionScores scores;
  scores.softcap = 1;  // takes separate scratch
  View grad_out = q;   // any non-null grad_out
  grad_out.data = &scores;
  const BackwardCall call = make_call(scores, q, k, v, {}, {}, grad_out, {});
  return with_floating_compute_type(q.dtype, [&]<class T>(T) { return Backward<T>::most_scratch(call); });
}

}  // namespace poolgrad::kernels
