// Score rules and dropout of attention, shared by forward and backward.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/attention/tile.cuh"
#include "kernels/functors/attention_dropout.h"
#include "kernels/functors/math.h"

namespace poolgrad::kernels::cuda {

/// A query and a key: their rows in the tensors, and their positions.
struct Pair {
  std::int64_t query, key, query_position, key_position;
};

template <class T>
struct ScoreRules {
  T scale, softcap, kept;  // softcap: 0 is none; kept: factor of weights that are not dropped
  const T *bias, *alibi;
  std::int64_t bias_strides[4], alibi_stride;
  bool drops;
  AttentionDropout dropout;
  std::int64_t first_batch, first_head;

  static ScoreRules make(const AttentionScores& scores) {
    ScoreRules rules{.scale = static_cast<T>(scores.scale),
                     .softcap = static_cast<T>(scores.softcap),
                     .kept = static_cast<T>(1 / (1 - scores.dropout)),
                     .bias = scores.bias.as<const T>(),
                     .alibi = scores.alibi.as<const T>(),
                     .bias_strides = {},
                     .alibi_stride = scores.alibi.strides[0],
                     .drops = scores.dropout > 0,
                     .dropout = AttentionDropout::make(scores.dropout_key, scores.dropout),
                     .first_batch = scores.first_batch,
                     .first_head = scores.first_head};
    for (int d = 0; d < 4; ++d) rules.bias_strides[d] = scores.bias.strides[d];
    return rules;
  }

  /// Returns the rules that start at a batch entry and a head.
  ScoreRules from(std::int64_t batch, std::int64_t head) const {
    ScoreRules part = *this;
    part.first_batch += batch;
    part.first_head += head;
    if (bias) part.bias += batch * bias_strides[0] + head * bias_strides[1];
    if (alibi) part.alibi += head * alibi_stride;
    return part;
  }

  /// Returns the score of a product. Sets `slope` to its derivative by the scaled product. A bias of -infinity gives
  /// -infinity for any product.
  __device__ T score(T product, std::int64_t batch, std::int64_t head, const Pair& pair, T& slope) const {
    T x = product * scale;
    slope = T(1);
    if (softcap != T{}) {
      const T t = Math<T>::tanh(x / softcap);
      slope = T(1) - t * t;
      x = softcap * t;
    }
    if (bias) {
      const T added = bias[batch * bias_strides[0] + head * bias_strides[1] + pair.query * bias_strides[2] +
                           pair.key * bias_strides[3]];
      x = added == -std::numeric_limits<T>::infinity() ? added : x + added;
    }
    if (alibi) {
      const std::int64_t apart = pair.query_position - pair.key_position;
      x -= alibi[head * alibi_stride] * static_cast<T>(apart < 0 ? -apart : apart);
    }
    return x;
  }
  /// Returns the dropout factor of a pair's weight.
  __device__ T kept_of(std::int64_t batch, std::int64_t head, const Pair& pair) const {
    if (!drops) return T(1);
    const PhiloxWords words =
        dropout.words(first_batch + batch, first_head + head, pair.query_position, pair.key_position >> 2);
    // An array with a runtime index would go to local memory.
    const bool odd = pair.key_position & 1, high = pair.key_position & 2;
    const std::uint32_t even_word = high ? words.word[2] : words.word[0],
                        odd_word = high ? words.word[3] : words.word[1];
    return (odd ? odd_word : even_word) >= dropout.threshold ? kept : T{};
  }
};

/// Returns min(x, 0) for logarithms of weights, which are at most 0. With a huge bias the rounding of lse could let the
/// weights overflow. NaN stays NaN.
template <class T>
__device__ T at_most_0(T x) {
  return x > T{} ? T{} : x;
}

/// A run as rows of a tile visit it in query head `head` of the schedule.
struct Visit {
  const AttentionProgram& program;
  const AttentionRun& run;
  std::int64_t head, row_position;

  /// Returns whether the mask keeps the pair of the row and step s; s must lie in the row's interval.
  __device__ bool keeps(std::int64_t s) const {
    return !run.has(AttentionRun::masked) || program.keeps(run, head, row_position, position(s));
  }
  __device__ std::int64_t position(std::int64_t s) const { return run.keys.position + s * run.keys.step; }
  /// Returns the logarithm of the pair's multiplicity.
  template <class T>
  __device__ T log_multiplicity(std::int64_t s) const {
    if (run.period == 0) return T{};
    return static_cast<T>(program.log_multiplicity[run.table + floor_mod(position(s), run.period)]);
  }
};

}  // namespace poolgrad::kernels::cuda
