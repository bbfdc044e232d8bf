// Arguments of an attention launch, shared by the portable and the tensor-core kernels.
#pragma once

#include "kernels/cuda/attention/scores.cuh"
#include "kernels/schedule/device_program.h"

namespace poolgrad::kernels::cuda {

/// One number per query, (B, H, N).
template <class T>
struct OfQueries {
  T* data = nullptr;
  std::int64_t batch = 0, head = 0, query = 0;

  OfQueries() = default;
  explicit OfQueries(const View& view)
      : data(view.as<T>()), batch(view.strides[0]), head(view.strides[1]), query(view.strides[2]) {}
  POOLGRAD_HD T& at(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return data[b * batch + h * head + i * query];
  }
  /// Returns the view that starts at a batch entry and a head.
  OfQueries from(std::int64_t first_batch, std::int64_t first_head) const {
    OfQueries part = *this;
    if (data) part.data += first_batch * batch + first_head * head;
    return part;
  }
};

/// Softmax state of a row over some of its keys. The partial results are relative to `maximum` and unnormalized.
template <class T>
struct PartialSoftmax {
  T maximum, sum;
};
template <class T>
struct PartialRows {
  PartialSoftmax<T>* data = nullptr;  // (parts, B, H, N)
  std::int64_t heads = 0, queries = 0, rows = 0;

  POOLGRAD_HD PartialSoftmax<T>& at(std::int64_t part, std::int64_t b, std::int64_t h, std::int64_t i) const {
    return data[part * rows + (b * heads + h) * queries + i];
  }
};

template <class T>
struct ForwardCall {
  AttentionProgram program;
  TileItems items;
  ScoreRules<T> rules;
  Operand q, k, v, out, carry_out;
  Operand staged_k, staged_v;  // for tensor cores: k and v; for f32 their split parts
  OfQueries<T> lse;
  OfQueries<const T> carry_lse;
  const T* sinks;
  std::int64_t sinks_stride, group;  // query heads per key head
  PartialRows<T> partial = {};       // set with several parts; the parts' results then follow each other

  static ForwardCall make(const AttentionProgram& program, const AttentionScores& scores, const GpuForwardPlan& plan,
                          const View& q, const View& k, const View& v, const View& out, const View& lse,
                          const View& carry_out, const View& carry_lse) {
    return {.program = program,
            .items = {q.shape[0], q.shape[2], scores.first_head, plan.stacked, plan.chunks, plan.parts},
            .rules = ScoreRules<T>::make(scores),
            .q = Operand(q),
            .k = Operand(k),
            .v = Operand(v),
            .out = Operand(out),
            .carry_out = Operand(carry_out),
            .staged_k = Operand(k),
            .staged_v = Operand(v),
            .lse = OfQueries<T>(lse),
            .carry_lse = OfQueries<const T>(carry_lse),
            .sinks = scores.sinks.as<const T>(),
            .sinks_stride = scores.sinks.strides[0],
            .group = q.shape[2] / k.shape[2]};
  }
  ForwardCall of(const CallPart& some) const {
    ForwardCall part = *this;
    const std::int64_t head = some.kv_head * group;
    part.items.batch = some.batches;
    part.items.heads = some.kv_heads * group;
    part.items.first_head += head;
    part.rules = rules.from(some.batch, head);
    part.q = q.from(some.batch, head);
    part.k = k.from(some.batch, some.kv_head);
    part.v = v.from(some.batch, some.kv_head);
    part.out = out.from(some.batch, head);
    part.carry_out = carry_out.from(some.batch, head);
    part.lse = lse.from(some.batch, head);
    part.carry_lse = carry_lse.from(some.batch, head);
    if (sinks) part.sinks += head * sinks_stride;
    return part;
  }
  /// Query and head of row i of a tile. With stacked heads, each row is another head of the same query.
  struct Row {
    std::int64_t head, query;
  };
  __device__ Row row(const TileItems::Item& item, const Progression& tile, std::int64_t i) const {
    return items.heads_of_item > 1 ? Row{item.head + i, tile.row} : Row{item.head, tile.row + i * tile.stride};
  }
  /// Returns the maximum before the first key: carry_lse, the sink's logit, or -infinity. Its weight is 1.
  __device__ T first_maximum(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    if (carry_lse.data) return carry_lse.at(batch, head, query);
    return sinks ? sinks[head * sinks_stride] : -std::numeric_limits<T>::infinity();
  }
};

/// Tiles of queries: `own` is q, `visited` k, `own_out` dO, `visited_out` v. Tiles of keys swap own and visited. own *
/// visited gives scores; own_out * visited_out gives gradients of weights.
template <class T>
struct GradientCall {
  AttentionProgram program;
  TileItems items;
  ScoreRules<T> rules;
  Operand own, visited, own_out, visited_out;
  // Tensor cores multiply `staged_first`, then use `staged_last` for the weighted sum. For dv, `staged_first` is
  // `visited`; otherwise it is `visited_out`. f32 operands are split.
  Operand staged_first, staged_last, own_first;
  bool by_keys, of_weights;  // by_keys: tiles of keys; of_weights: dv, a sum of weights alone
  Operand result;
  Operand result_out = {};  // dv, if one launch sums dk (`result`) and dv
  T* dbias;
  std::int64_t dbias_strides[4];
  OfQueries<const T> lse, delta;
  std::int64_t group;
  bool accumulate;

  GradientCall of(const CallPart& some) const {
    GradientCall part = *this;
    const std::int64_t head = some.kv_head * group, own_head = by_keys ? some.kv_head : head,
                       visited_head = by_keys ? head : some.kv_head;
    part.items.batch = some.batches;
    part.items.heads = some.kv_heads * group;
    part.items.first_head += head;
    part.rules = rules.from(some.batch, head);
    part.own = own.from(some.batch, own_head);
    part.own_out = own_out.from(some.batch, own_head);
    part.result = result.from(some.batch, own_head);
    part.result_out = result_out.from(some.batch, own_head);
    part.visited = visited.from(some.batch, visited_head);
    part.visited_out = visited_out.from(some.batch, visited_head);
    if (dbias) part.dbias += some.batch * dbias_strides[0] + head * dbias_strides[1];
    part.lse = lse.from(some.batch, head);
    part.delta = delta.from(some.batch, head);
    return part;
  }
};

}  // namespace poolgrad::kernels::cuda
