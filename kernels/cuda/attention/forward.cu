// out and lse: one online softmax over the keys that the program has for a tile of queries (Dao et al. 2022; Milakov
// and Gimelshein 2018).
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

/// A thread is one of the lanes of a row of scores, of which it has every lanes_of_row-th.
template <class T, int Packs>
__global__ __launch_bounds__(tile_threads<T>, 1) void attend_tiles(const __grid_constant__ ForwardCall<T> call) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  constexpr int lanes = lanes_of_row<T>;
  POOLGRAD_SHARED(ValuePack<T>, staged, staged_count<T>);
  POOLGRAD_SHARED(T, factors, tile_rows<T>);
  POOLGRAD_DYNAMIC_SHARED(T, scores);
  const AttentionProgram& program = call.program;
  const ScoreRules<T>& rules = call.rules;
  const int row = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t count = call.items.count(program);
  POOLGRAD_ROLLED
  for (std::int64_t n = blockIdx.x; n < count; n += gridDim.x) {
    const TileItems::Item item = call.items.at(program, n);
    if (!item.exists) continue;
    const Progression tile = program.tile[item.tile];
    if (tile.count == 0) continue;
    const std::int64_t kv_head = item.head / call.group, scheduled = call.items.first_head + item.head,
                       number = program.of(scheduled, item.tile);
    const std::int64_t column = item.chunk * Results<T, Packs>::columns, query = tile.row + row * tile.stride;
    const auto all_queries = rows_of(call.q, item.batch, item.head, tile, 0, static_cast<int>(tile.count));

    T maximum = nothing, sum{};
    if (row < tile.count) {
      maximum = call.first_maximum(item.batch, item.head, query);
      if (lane == 0 && maximum != nothing) sum = T(1);
    }
    Results<T, Packs> results{};
    if (call.carry_out.data)
      results.for_each([&](int i, int c, ValuePack<T>& values) {
        const std::int64_t at = tile.row + i * tile.stride;
        if (i < tile.count && call.carry_lse.at(item.batch, item.head, at) != nothing)
          values =
              load<T>(call.carry_out,
                      item.batch * call.carry_out.batch + item.head * call.carry_out.head + at * call.carry_out.row,
                      column + c);
      });

    POOLGRAD_ROLLED
    for (std::int64_t r = program.tile_begin[number]; r < program.tile_begin[number + 1]; ++r) {
      const AttentionRun& run = program.run[r];
      const Visit visit{program, run, scheduled, tile.position + row * tile.step};
      const Interval seen = steps_of_row(program, run, tile, row), all = steps_of_tile(program, run, tile);
      POOLGRAD_ROLLED
      for (std::int64_t first = all.begin; first < all.end; first += tile_rows<T>) {
        const int keys = static_cast<int>(all.end - first < tile_rows<T> ? all.end - first : tile_rows<T>);
        multiply_rows<T>(scores, 0, staged, call.q, all_queries, call.k,
                         rows_of(call.k, item.batch, kv_head, run.keys, first, keys));
        __syncthreads();  // scores are there
        const int weighed = row < whole_groups(all_queries.count) ? keys : 0;
        T highest = maximum;
        POOLGRAD_ROLLED
        for (int c = lane; c < weighed; c += lanes) {
          const std::int64_t step = first + c;
          T score = nothing;
          if (seen.contains(step) && visit.keeps(step)) {
            const Pair pair{query, run.keys.row + step * run.keys.stride, visit.row_position, visit.position(step)};
            T slope;
            score = rules.score(scores[row * score_stride<T> + c], item.batch, item.head, pair, slope) +
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
            weight *= rules.kept_of(item.batch, item.head, {query, 0, visit.row_position, visit.position(step)});
          }
          scores[row * score_stride<T> + c] = weight;
        }
        __syncthreads();  // factors and weights are there
        results.scale_rows(factors);
        results.add_weighted(scores, staged, call.v, rows_of(call.v, item.batch, kv_head, run.keys, first, keys),
                             column, all_queries.count);
      }
    }

    const T total = warp_reduce<reductions::Sum>(sum, lanes);
    __syncthreads();  // factors have been read
    if (lane == 0) {
      factors[row] = total == T{} ? T{} : T(1) / total;
      if (row < tile.count && call.lse.data && item.chunk == 0)
        call.lse.at(item.batch, item.head, query) = maximum + Math<T>::log(total);
    }
    __syncthreads();
    results.scale_rows(factors);
    results.for_each([&](int i, int c, const ValuePack<T>& values) {
      if (i >= tile.count) return;
      const std::int64_t at = tile.row + i * tile.stride;
      store<T>(call.out, item.batch * call.out.batch + item.head * call.out.head + at * call.out.row, column + c,
               values);
    });
  }
}

/// Memory in which a result is made that lies over what other items read; copied to its place.
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

template <class T, int Packs>
void attend(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
            const View& k, const View& v, const View& out, const View& lse, const View& carry_out,
            const View& carry_lse) {
  constexpr std::int64_t columns = Results<T, Packs>::columns;
  static_assert(tile_rows<T> == gpu_tile_rows(dtype_of<T>) && columns <= gpu_result_columns(dtype_of<T>));
  const std::int64_t chunks = v.shape[3] > columns ? (v.shape[3] + columns - 1) / columns : 1;
  const Apart<T> own_out(stream, out, chunks > 1 && out.data == q.data),
      own_lse(stream, lse, chunks > 1 && lse.data && lse.data == carry_lse.data);
  const auto kept = program_on_device(stream, schedule, tile_rows<T>);
  const auto call = ForwardCall<T>::make(kept->program(), scores, chunks, q, k, v, own_out.view(), own_lse.view(),
                                         carry_out, carry_lse);
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  launch("attention", &attend_tiles<T, Packs>, shape_of_items(items, tile_threads<T>, score_bytes<T>), stream, call);
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
  const auto run = [&](auto kernel) { kernel(stream, schedule, scores, q, k, v, out, lse, carry_out, carry_lse); };
  if (cuda::mma_takes({&q, &k, &v}))
    run(cuda::attend_by_mma);
  else if (q.dtype == DType::f64)
    run(cuda::attend<double, 2>);
  else if (v.shape[3] <= 64)
    run(cuda::attend<float, 1>);
  else
    run(cuda::attend<float, 2>);
}

}  // namespace poolgrad::kernels
