// Computes out and lse by one online softmax over the keys that the program lists for a tile of queries (Dao et al.
// 2022; Milakov and Gimelshein 2018).
#include <algorithm>
#include <optional>

#include "kernels/cuda/attention/calls.cuh"
#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/schedule/device_program.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace cuda {
namespace {

/// A thread is one lane of a row of scores and holds every lanes-th score. Part p of the keys takes every parts-th tile
/// of keys.
template <class T, int Packs, bool Few>
__global__ __launch_bounds__(tile_threads<T>, 1) void attend_tiles(const __grid_constant__ ForwardCall<T> call) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  constexpr int lanes = Few ? lanes_of_few : lanes_of_row<T>;
  POOLGRAD_SHARED(ValuePack<T>, staged, staged_count<T>);
  POOLGRAD_SHARED(T, factors, tile_rows<T>);
  POOLGRAD_DYNAMIC_SHARED(T, scores);
  const AttentionProgram& program = call.program;
  const ScoreRules<T>& rules = call.rules;
  using Held = Results<T, Packs, Few>;
  const int row = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t count = call.items.count(program);
  POOLGRAD_ROLLED
  for (std::int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    const TileItems::Item item = call.items.at(program, n);
    if (!item.exists) continue;
    const Progression tile = program.tile[item.tile];
    if (tile.count == 0) continue;
    const std::int64_t kv_head = item.head / call.group, scheduled = call.items.first_head + item.head,
                       number = program.of(scheduled, item.tile), column = item.chunk * Held::columns;
    const bool stacked = call.items.heads_of_item > 1;
    const int rows = static_cast<int>(stacked ? call.items.heads_of_item : tile.count),
              scheduled_row = stacked ? 0 : row;
    const auto own = call.row(item, tile, row);
    const TileRows queries{offset_of(call.q, item.batch, item.head, tile.row),
                           stacked ? call.q.head : tile.stride * call.q.row, rows};

    T maximum = nothing, sum{};
    if (row < rows && item.part == 0) {
      maximum = call.first_maximum(item.batch, own.head, own.query);
      if (lane == 0 && maximum != nothing) sum = T(1);
    }
    Held results{};
    if (call.carry_out.data && item.part == 0)
      results.for_each([&](int i, int c, ValuePack<T>& values) {
        const auto of = call.row(item, tile, i);
        if (i < rows && (!Few || Held::group() == 0) && call.carry_lse.at(item.batch, of.head, of.query) != nothing)
          values = load<T>(call.carry_out, offset_of(call.carry_out, item.batch, of.head, of.query), column + c);
      });

    std::int64_t ahead = item.part;  // tiles of keys to skip before the next tile of this part
    POOLGRAD_ROLLED
    for (std::int64_t r = program.tile_begin[number]; r < program.tile_begin[number + 1]; ++r) {
      const AttentionRun& run = program.run[r];
      const Visit visit{program, run, scheduled, tile.position + scheduled_row * tile.step};
      const Interval seen = row < rows ? steps_of_row(program, run, tile, scheduled_row) : Interval{0, 0},
                     all = steps_of_tile(program, run, tile);
      const std::int64_t tiles = all.begin < all.end ? ceil_div(all.end - all.begin, std::int64_t{tile_rows<T>}) : 0;
      POOLGRAD_ROLLED
      for (; ahead < tiles; ahead += call.items.parts) {
        const std::int64_t first = all.begin + ahead * tile_rows<T>;
        const int keys = static_cast<int>(all.end - first < tile_rows<T> ? all.end - first : tile_rows<T>);
        const TileRows visited = rows_of(call.k, item.batch, kv_head, run.keys, first, keys);
        if constexpr (Few)
          multiply_few_rows<T>(scores, staged, call.q, queries, call.k, visited);
        else
          multiply_rows<T>(scores, 0, staged, call.q, queries, call.k, visited);
        __syncthreads();  // scores are written
        const int weighed = row < whole_groups(rows) ? keys : 0;
        T highest = maximum;
        POOLGRAD_ROLLED
        for (int c = lane; c < weighed; c += lanes) {
          const std::int64_t step = first + c;
          T score = nothing;
          if (seen.contains(step) && visit.keeps(step)) {
            const Pair pair{own.query, run.keys.row + step * run.keys.stride, visit.row_position, visit.position(step)};
            T slope;
            score = rules.score(scores[row * score_stride<T> + c], item.batch, own.head, pair, slope) +
                    visit.template log_multiplicity<T>(step);
          }
          scores[row * score_stride<T> + c] = score;
          highest = reductions::Maximum::combine(highest, score);
        }
        highest = warp_reduce<reductions::Maximum>(highest, lanes);
        const T shift = highest == nothing ? T{} : highest, factor = Math<T>::exp(maximum - shift);
        maximum = highest;
        sum *= factor;
        if (lane == 0) factors[row] = factor;
        POOLGRAD_ROLLED
        for (int c = lane; c < weighed; c += lanes) {
          const T score = scores[row * score_stride<T> + c];
          T weight = uncounted<T>;
          if (score != nothing) {
            const std::int64_t step = first + c;
            weight = Math<T>::exp(score - shift);
            sum += weight;
            weight *= rules.kept_of(item.batch, own.head, {own.query, 0, visit.row_position, visit.position(step)});
          }
          scores[row * score_stride<T> + c] = weight;
        }
        __syncthreads();  // factors and weights are there
        results.scale_rows(factors);
        results.add_weighted(scores, staged, call.v, rows_of(call.v, item.batch, kv_head, run.keys, first, keys),
                             column, rows);
      }
      ahead -= tiles;
    }

    const T total = warp_reduce<reductions::Sum>(sum, lanes);
    __syncthreads();  // all threads have read the factors
    if (lane == 0) {
      factors[row] = call.partial.data ? T(1) : total == T{} ? T{} : T(1) / total;
      if (row < rows && item.chunk == 0) {
        if (call.partial.data)
          call.partial.at(item.part, item.batch, own.head, own.query) = {maximum, total};
        else if (call.lse.data)
          call.lse.at(item.batch, own.head, own.query) = maximum + Math<T>::log(total);
      }
    }
    if constexpr (Few) results.add_shares(scores);
    __syncthreads();
    results.scale_rows(factors);
    results.for_each([&](int i, int c, const ValuePack<T>& values) {
      if (i >= rows || (Few && Held::group() > 0)) return;
      const auto of = call.row(item, tile, i);
      store<T>(call.out,
               item.part * call.partial.rows * call.out.depth + offset_of(call.out, item.batch, of.head, of.query),
               column + c, values);
    });
  }
}

/// Merges the results of the key parts into out and lse, in the order of the parts.
template <class T>
struct JoinCall {
  PartialRows<T> partial;
  std::int64_t parts, packs;  // packs per row, at least one
  Operand results, out;       // results: of the first part; the other parts follow
  OfQueries<T> lse;
};

template <class T>
__global__ __launch_bounds__(256) void join_parts(const __grid_constant__ JoinCall<T> call) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  const PartialRows<T>& partial = call.partial;
  for (std::int64_t n = grid_thread(); n < partial.rows * call.packs; n += grid_threads()) {
    const std::int64_t column = n % call.packs * pack<T>, head = n / call.packs % partial.heads,
                       query = n / call.packs / partial.heads % partial.queries,
                       batch = n / call.packs / partial.heads / partial.queries;
    T maximum = nothing, sum{};
    for (std::int64_t p = 0; p < call.parts; ++p)
      maximum = reductions::Maximum::combine(maximum, partial.at(p, batch, head, query).maximum);
    ValuePack<T> values{};
    for (std::int64_t p = 0; p < call.parts; ++p) {
      const PartialSoftmax<T> part = partial.at(p, batch, head, query);
      if (part.maximum == nothing) continue;  // the part had no visible key
      const T weight = Math<T>::exp(part.maximum - maximum);
      sum += weight * part.sum;
      const std::int64_t from = p * partial.rows * call.results.depth + offset_of(call.results, batch, head, query);
      const ValuePack<T> more = load<T>(call.results, from, column);
      POOLGRAD_UNROLL
      for (int e = 0; e < pack<T>; ++e) values.value[e] += weight * more.value[e];
    }
    const T factor = sum == T{} ? T{} : T(1) / sum;
    POOLGRAD_UNROLL
    for (int e = 0; e < pack<T>; ++e) values.value[e] *= factor;
    store<T>(call.out, offset_of(call.out, batch, head, query), column, values);
    if (column == 0 && call.lse.data) call.lse.at(batch, head, query) = maximum + Math<T>::log(sum);
  }
}

/// Temporary result for an output that overlaps an input of other items. put() copies it to the output.
template <class T>
class Apart {
 public:
  Apart(Stream stream, const View& to, bool needed) : stream_(stream), to_(to), view_(to) {
    if (!needed) return;
    view_.dtype = dtype_of<T>;
    memory_.emplace(stream, "attention", to.count());
    view_.data = memory_->data();
    for (std::int64_t d = to.rank - 1, step = 1; d >= 0; step *= to.shape[d--]) view_.strides[d] = step;
  }
  const View& view() const { return view_; }
  void put() const {
    if (memory_) copy(stream_, to_, view_);
  }

 private:
  Stream stream_;
  View to_, view_;
  std::optional<Workspace<T>> memory_;
};

/// Workspace for the key parts: their results one after another, then their maxima and sums.
template <class T>
class Parts {
 public:
  Parts(Stream stream, const GpuForwardPlan& plan, const View& q, const View& v)
      : stream_(stream), plan_(plan), memory_(stream, "attention", plan.partial_elements(v)) {
    results_ = {memory_.data(), dtype_of<T>, 4, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}};
    for (std::int64_t d = 3, step = 1; d >= 0; step *= results_.shape[d--]) results_.strides[d] = step;
  }
  const View& results() const { return results_; }
  PartialRows<T> rows() const {
    return {reinterpret_cast<PartialSoftmax<T>*>(memory_.data() + plan_.parts * results_.count()), results_.shape[2],
            results_.shape[1], plan_.rows};
  }
  void join(const View& out, const View& lse) const {
    const std::int64_t packs = std::max<std::int64_t>(1, ceil_div(out.shape[3], std::int64_t{pack<T>}));
    const JoinCall<T> call{rows(), plan_.parts, packs, Operand(results_), Operand(out), OfQueries<T>(lse)};
    launch("attention", &join_parts<T>, grid_stride_shape(plan_.rows * packs), stream_, call);
  }

 private:
  Stream stream_;
  GpuForwardPlan plan_;
  Workspace<T> memory_;
  View results_;
};

template <class T, int Packs>
void attend(Stream stream, const AttentionProgram& program, const GpuForwardPlan& plan, const AttentionScores& scores,
            const View& q, const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
            const View& carry_lse) {
  static_assert(tile_rows<T> == gpu_tile_rows(dtype_of<T>) &&
                Results<T, Packs>::columns <= gpu_result_columns(dtype_of<T>));
  const auto run = [&](const View& to, const View& lse_to, const PartialRows<T>& partial) {
    auto call = ForwardCall<T>::make(program, scores, plan, q, k, v, to, lse_to, carry_out, carry_lse);
    call.partial = partial;
    const LaunchShape shape = shape_of_items(call.items.count(program), tile_threads<T>, score_bytes<T>);
    const auto kernel =
        plan.rows_of_tile(q) <= few_rows ? &attend_tiles<T, Packs, true> : &attend_tiles<T, Packs, false>;
    launch("attention", kernel, shape, stream, call);
  };
  if (plan.parts > 1) {
    const Parts<T> parts(stream, plan, q, v);
    run(parts.results(), {}, parts.rows());
    return parts.join(out, lse);
  }
  const Apart<T> own_out(stream, out, plan.chunks > 1 && out.data == q.data),
      own_lse(stream, lse, plan.chunks > 1 && lse.data && lse.data == carry_lse.data);
  run(own_out.view(), own_lse.view(), {});
  own_out.put();
  own_lse.put();
}

}  // namespace
}  // namespace cuda

void on_cuda::attention_forward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                const View& q, const View& k, const View& v, const View& out, const View& lse,
                                const View& carry_out, const View& carry_lse) {
  if (q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0) return;
  cuda::check_views("attention", stream,
                    {&q, &k, &v, &out, &lse, &carry_out, &carry_lse, &scores.bias, &scores.alibi, &scores.sinks});
  const auto kept = program_on_device(stream, schedule, gpu_tile_rows(compute_dtype(q.dtype)));
  const auto plan = GpuForwardPlan::make(kept->whole()->program(), q, k, v);
  const auto run = [&](auto kernel) {
    kernel(stream, kept->program(), plan, scores, q, k, v, out, lse, carry_out, carry_lse);
  };
  if (plan.parts == 1 && mma_takes({&q, &k, &v}) && cuda::mma_fits(stream.device.index, {&q, &v}))
    cuda::attend_by_mma(stream, kept->program(), scores, q, k, v, out, lse, carry_out, carry_lse);
  else if (q.dtype == DType::f64)
    run(cuda::attend<double, 2>);
  else if (v.shape[3] <= 64)
    run(cuda::attend<float, 1>);
  else
    run(cuda::attend<float, 2>);
}

}  // namespace poolgrad::kernels
