// Gradients of attention from the global lse and delta, without atomics. One kernel serves all: tiles of queries give
// dq; tiles of keys over the transposed program give dk and dv. Each gradient is one launch that recomputes the weights
// (Dao et al. 2022). One block computes each element, in the order of the program.
#include <vector>

#include "kernels/cuda/attention/calls.cuh"
#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementwise.h"
#include "kernels/schedule/device_program.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace cuda {
namespace {

template <class T, int Packs>
__global__ __launch_bounds__(tile_threads<T>, 1) void sum_gradients(const __grid_constant__ GradientCall<T> call) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  constexpr int lanes = lanes_of_row<T>, second = tile_rows<T> * score_stride<T>;
  POOLGRAD_SHARED(ValuePack<T>, staged, staged_count<T>);
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
    const std::int64_t column = item.chunk * Results<T, Packs>::columns, own_row = tile.row + row * tile.stride,
                       own_position = tile.position + row * tile.step, kv_head = item.head / call.group;
    Results<T, Packs> results{};

    POOLGRAD_ROLLED
    for (std::int64_t head = item.head; head < item.head + call.items.heads_of_item; ++head) {
      const std::int64_t own_head = call.by_keys ? kv_head : head, visited_head = call.by_keys ? head : kv_head,
                         scheduled = call.items.first_head + head, number = program.of(scheduled, item.tile);
      const int own_rows = static_cast<int>(tile.count);
      POOLGRAD_ROLLED
      for (std::int64_t r = program.tile_begin[number]; r < program.tile_begin[number + 1]; ++r) {
        const AttentionRun& run = program.run[r];
        const Visit visit{program, run, scheduled, own_position};
        const Interval seen = steps_of_row(program, run, tile, row), all = steps_of_tile(program, run, tile);
        POOLGRAD_ROLLED
        for (std::int64_t first = all.begin; first < all.end; first += tile_rows<T>) {
          const int visited = static_cast<int>(all.end - first < tile_rows<T> ? all.end - first : tile_rows<T>);
          const auto own_part = [&](const Operand& x) { return rows_of(x, item.batch, own_head, tile, 0, own_rows); };
          const auto visited_part = [&](const Operand& x) {
            return rows_of(x, item.batch, visited_head, run.keys, first, visited);
          };
          multiply_rows<T>(scores, 0, staged, call.own, own_part(call.own), call.visited, visited_part(call.visited));
          if (!call.of_weights)
            multiply_rows<T>(scores, second, staged, call.own_out, own_part(call.own_out), call.visited_out,
                             visited_part(call.visited_out));
          __syncthreads();  // products are written
          const int weighed = row < whole_groups(own_rows) ? visited : 0;
          POOLGRAD_ROLLED
          for (int c = lane; c < weighed; c += lanes) {
            const std::int64_t step = first + c;
            const int at = row * score_stride<T> + c;
            T result = uncounted<T>;
            if (seen.contains(step) && visit.keeps(step)) {
              const std::int64_t other_row = run.keys.row + step * run.keys.stride, position = visit.position(step);
              const Pair pair = call.by_keys ? Pair{other_row, own_row, position, own_position}
                                             : Pair{own_row, other_row, own_position, position};
              const T lse = call.lse.at(item.batch, head, pair.query);
              T slope;
              const T score =
                  rules.score(scores[at], item.batch, head, pair, slope) + visit.template log_multiplicity<T>(step);
              if (lse != nothing && score != nothing) {
                const T weight = Math<T>::exp(at_most_0(score - lse)), kept = rules.kept_of(item.batch, head, pair);
                if (call.of_weights) {
                  result = weight * kept;
                } else {
                  const T delta = call.delta.at(item.batch, head, pair.query);
                  const T gradient = weight * (scores[second + at] * kept - delta);
                  if (call.dbias && item.chunk == 0)
                    call.dbias[item.batch * call.dbias_strides[0] + head * call.dbias_strides[1] +
                               pair.query * call.dbias_strides[2] + pair.key * call.dbias_strides[3]] += gradient;
                  result = gradient * slope * rules.scale;
                }
                result += T{};  // adding +0 turns -0, the `uncounted` mark, into a weight that counts
              }
            }
            scores[at] = result;
          }
          const Operand& x = call.of_weights ? call.visited_out : call.visited;
          results.add_weighted(scores, staged, x, visited_part(x), column, own_rows);
        }
      }
    }

    const std::int64_t result_head = call.by_keys ? kv_head : item.head;
    results.for_each([&](int i, int c, ValuePack<T>& values) {
      if (i >= tile.count) return;
      const std::int64_t at = item.batch * call.result.batch + result_head * call.result.head +
                              (tile.row + i * tile.stride) * call.result.row;
      if (call.accumulate) {
        const auto before = load<T>(call.result, at, column + c);
        POOLGRAD_UNROLL
        for (int e = 0; e < pack<T>; ++e) values.value[e] += before.value[e];
      }
      store<T>(call.result, at, column + c, values);
    });
  }
}

/// Computes delta = <dO, O> - dlse, one warp per row.
struct DeltaCall {
  Operand out, grad_out;
  View grad_lse, delta;
};
[[maybe_unused]] inline constexpr int delta_threads = 256;
template <class T>
__global__ __launch_bounds__(delta_threads) void find_delta(const __grid_constant__ DeltaCall call) {
  const std::int64_t heads = call.delta.shape[1], queries = call.delta.shape[2],
                     rows = call.delta.shape[0] * heads * queries, lane = threadIdx.x % threads_per_warp;
  POOLGRAD_ROLLED
  for (std::int64_t n = grid_thread() / threads_per_warp; n < rows; n += grid_threads() / threads_per_warp) {
    const std::int64_t query = n % queries, head = n / queries % heads, batch = n / queries / heads;
    const auto row_of = [&](const Operand& x) { return batch * x.batch + head * x.head + query * x.row; };
    T sum{};
    if (call.grad_out.data)
      for (std::int64_t c = lane * pack<T>; c < call.out.depth; c += threads_per_warp * pack<T>) {
        const auto a = load<T>(call.out, row_of(call.out), c), b = load<T>(call.grad_out, row_of(call.grad_out), c);
        POOLGRAD_UNROLL
        for (int e = 0; e < pack<T>; ++e) sum += a.value[e] * b.value[e];
      }
    sum = warp_reduce<reductions::Sum>(sum);
    const View &g = call.grad_lse, &d = call.delta;
    if (lane == 0)
      d.as<T>()[batch * d.strides[0] + head * d.strides[1] + query * d.strides[2]] =
          sum - (g.data ? g.as<const T>()[batch * g.strides[0] + head * g.strides[1] + query * g.strides[2]] : T{});
  }
}

/// Launches one of dq, dk and dv. The dq launch also computes dbias; dq itself may then lack data.
template <class T, int Packs>
void launch_gradient(Stream stream, GradientCall<T> call, std::int64_t depth) {
  const std::int64_t columns = Results<T, Packs>::columns;
  call.items.chunks = call.result.data && depth > columns ? (depth + columns - 1) / columns : 1;
  const std::int64_t items = call.items.count(call.program);
  if (items == 0) return;
  launch("attention backward", &sum_gradients<T, Packs>,
         shape_of_items(items, tile_threads<T>, (call.of_weights ? 1 : 2) * score_bytes<T>), stream, call);
}
/// Launches gradients whose tiles visit the same rows.
template <class T>
void launch_gradients(Stream stream, const std::vector<GradientCall<T>>& calls, const View& visited,
                      const View& visited_out, bool by_mma) {
  if constexpr (std::is_same_v<T, float>)
    if (by_mma) return sum_gradients_by_mma(stream, calls, visited, visited_out);
  for (const GradientCall<T>& call : calls) {
    const std::int64_t depth = call.of_weights ? call.own_out.depth : call.own.depth;
    if (std::is_same_v<T, double> || depth > Results<T, 1>::columns)
      launch_gradient<T, 2>(stream, call, depth);
    else if constexpr (!std::is_same_v<T, double>)
      launch_gradient<T, 1>(stream, call, depth);
  }
}

template <class T>
void backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores, const View& q,
              const View& k, const View& v, const View& lse, const View& delta, const View& grad_out,
              const AttentionGradients& gradients) {
  const AttentionGradients& g = gradients;
  const bool by_mma = mma_takes({&q, &k, &v, &grad_out}) && mma_fits(stream.device.index, {&q, &v});
  GradientCall<T> call{};
  call.rules = ScoreRules<T>::make(scores);
  call.lse = OfQueries<const T>(lse);
  call.delta = OfQueries<const T>(delta);
  call.group = q.shape[2] / k.shape[2];
  const Operand values(grad_out.data || by_mma ? v : grad_out);  // without dO the product is 0, even if V holds NaN
  call.accumulate = g.accumulate;
  call.items = {q.shape[0], q.shape[2], scores.first_head, 1, 1};
  if (g.dq.data || g.dbias.data) {
    const auto kept = program_on_device(stream, schedule, tile_rows<T>);
    GradientCall<T> by_query = call;
    by_query.program = kept->program();
    by_query.own = Operand(q), by_query.visited = Operand(k);
    by_query.own_out = Operand(grad_out), by_query.visited_out = values;
    by_query.result = Operand(g.dq);
    by_query.dbias = g.dbias.as<T>();
    for (int d = 0; d < 4; ++d) by_query.dbias_strides[d] = g.dbias.strides[d];
    if (g.dbias.data && !g.accumulate) fill(stream, g.dbias, 0);
    launch_gradients<T>(stream, {by_query}, k, v, by_mma);
  }
  if (!g.dk.data && !g.dv.data) return;
  const auto kept = program_on_device(stream, schedule.transposed(), tile_rows<T>);
  call.program = kept->program();
  call.by_keys = true;
  call.items.heads_of_item = call.group;
  call.own = Operand(k), call.visited = Operand(q);
  call.own_out = values, call.visited_out = Operand(grad_out);
  std::vector<GradientCall<T>> of_keys;
  if (g.dk.data) {
    of_keys.push_back(call);
    of_keys.back().result = Operand(g.dk);
  }
  if (g.dv.data) {
    of_keys.push_back(call);
    of_keys.back().result = Operand(g.dv);
    of_keys.back().of_weights = true;
  }
  launch_gradients(stream, of_keys, q, grad_out, by_mma);
}

}  // namespace
}  // namespace cuda

void on_cuda::attention_delta(Stream stream, const View& out, const View& grad_out, const View& grad_lse,
                              const View& delta) {
  const std::int64_t rows = delta.count();
  if (rows == 0) return;
  cuda::check_views("attention delta", stream, {&out, &grad_out, &grad_lse, &delta});
  with_floating_compute_type(delta.dtype, [&]<class T>(T) {
    cuda::launch("attention delta", &cuda::find_delta<T>, grid_stride_shape(rows * cuda::threads_per_warp), stream,
                 {cuda::Operand(out), cuda::Operand(grad_out), grad_lse, delta});
  });
}

void on_cuda::attention_backward(Stream stream, const AttentionSchedule& schedule, const AttentionScores& scores,
                                 const View& q, const View& k, const View& v, const View& lse, const View& delta,
                                 const View& grad_out, const AttentionGradients& gradients) {
  cuda::check_views("attention backward", stream,
                    {&q, &k, &v, &lse, &delta, &grad_out, &gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias,
                     &scores.bias, &scores.alibi});
  with_floating_compute_type(q.dtype, [&]<class T>(T) {
    cuda::backward<T>(stream, schedule, scores, q, k, v, lse, delta, grad_out, gradients);
  });
}

}  // namespace poolgrad::kernels
