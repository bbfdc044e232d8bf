// What a launch of attention is told: the same for portable kernels and for those of tensor cores.
#pragma once

#include "kernels/cuda/attention/scores.cuh"
#include "kernels/schedule/device_program.h"

namespace poolgrad::kernels::cuda {

/// One number for each query: (B, H, N).
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
  /// From a batch entry and a head on.
  OfQueries from(std::int64_t first_batch, std::int64_t first_head) const {
    OfQueries part = *this;
    if (data) part.data += first_batch * batch + first_head * head;
    return part;
  }
};

/// Of a row and a part of its keys: the results are relative to the maximum, and not divided by the sum.
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
  Operand staged_k, staged_v;  // for tensor cores: k and v, or, of f32, what is split of them
  OfQueries<T> lse;
  OfQueries<const T> carry_lse;
  const T* sinks;
  std::int64_t sinks_stride, group;  // query heads of a key head
  PartialRows<T> partial = {};       // where there are several parts: results are then part after part

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
  /// Whose row i of a tile is: a query, or, where heads are stacked, one of the heads.
  struct Row {
    std::int64_t head, query;
  };
  __device__ Row row(const TileItems::Item& item, const Progression& tile, std::int64_t i) const {
    return items.heads_of_item > 1 ? Row{item.head + i, tile.row} : Row{item.head, tile.row + i * tile.stride};
  }
  /// The maximum before the first key: that of the keys so far, that of a sink, or none; its weight is 1.
  __device__ T first_maximum(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    if (carry_lse.data) return carry_lse.at(batch, head, query);
    return sinks ? sinks[head * sinks_stride] : -std::numeric_limits<T>::infinity();
  }
};

/// With tiles of queries, `own` is q, `visited` k, `own_out` dO, `visited_out` v; with tiles of keys the other way
/// round. The products of the former are scores, those of the latter the gradients of weights.
template <class T>
struct GradientCall {
  AttentionProgram program;
  TileItems items;
  ScoreRules<T> rules;
  Operand own, visited, own_out, visited_out;
  // For tensor cores, which multiply one kind of visited rows first, and then weigh the other: of v's gradient the
  // former are those that are visited, of others those of dO. Of f32 they are split.
  Operand staged_first, staged_last, own_first;
  bool by_keys, of_weights;  // tiles are of keys; the gradient of v, which needs weights alone
  Operand result;
  Operand result_out = {};  // dv, where `result` is dk and both are summed up at once
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
