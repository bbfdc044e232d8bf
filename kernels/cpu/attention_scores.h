// What becomes of the products of queries and keys before the softmax, and of the weights after it: softcap, bias,
// ALiBi, multiplicities, single pairs that do not count, dropout. Forward and backward share it, so that both see the
// same numbers. A block of scores is stored by key: row t is step t of `keys`, lane i step i of `queries`. Scores are
// in base 2: multiplied by log2(e), so that a weight is exp2(score - lse).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

#include "kernels/attention.h"
#include "kernels/attention_dropout.h"
#include "kernels/cpu/philox_lanes.h"
#include "kernels/cpu/simd.h"

namespace poolgrad::kernels::attention {

/// Steps [begin, begin + count) of a progression.
inline Progression part_of(const Progression& p, std::int64_t begin, std::int64_t count) {
  return {p.row + begin * p.stride, p.stride, count, p.position + begin * p.step, p.step};
}

/// A part of a buffer of scores: keys [begin, end) by `lanes` queries, a multiple of simd::lanes<T>. Lanes beyond the
/// queries hold anything.
template <class T>
struct ScoreBlock {
  T* data;
  std::int64_t stride, begin, end, lanes;
  T* row(std::int64_t key) const { return data + key * stride; }
};

/// The modifications of one head of one batch entry.
template <class T>
struct ScoreRules {
  T softcap = 0, slope = 0;  // in base 2; 0: off
  const T* bias = nullptr;
  std::int64_t bias_query = 0, bias_key = 0;  // its strides
  bool drops = false;
  AttentionDropout dropout;
  T kept = 1;                        // factor of weights that stay
  std::int64_t batch = 0, head = 0;  // of the whole call

  static ScoreRules make(const AttentionScores& scores, std::int64_t batch, std::int64_t head) {
    ScoreRules rules;
    rules.softcap = static_cast<T>(scores.softcap * std::numbers::log2e);
    if (scores.alibi.data)
      rules.slope = scores.alibi.as<const T>()[head * scores.alibi.strides[0]] * static_cast<T>(std::numbers::log2e);
    if (const View& b = scores.bias; b.data) {
      rules.bias = b.as<const T>() + batch * b.strides[0] + head * b.strides[1];
      rules.bias_query = b.strides[2];
      rules.bias_key = b.strides[3];
    }
    rules.drops = scores.dropout > 0;
    rules.dropout = AttentionDropout::make(scores.dropout_key, scores.dropout);
    rules.kept = static_cast<T>(1 / (1 - scores.dropout));
    rules.batch = scores.first_batch + batch;
    rules.head = scores.first_head + head;
    return rules;
  }
  bool modifies() const { return softcap != 0 || slope != 0 || bias; }
};

/// out[t] = log_multiplicity of step t of a strip's run, in base 2, up to `padded` >= run.count; the rest 0.
template <class T>
void log_multiplicities(const Strip& strip, const Progression& run, T* out, std::int64_t padded) {
  std::int64_t phase = floor_mod(run.position, strip.period);
  const std::int64_t step = floor_mod(run.step, strip.period);
  for (std::int64_t t = 0; t < run.count; ++t) {
    out[t] = static_cast<T>(strip.log_multiplicity[phase]) * static_cast<T>(std::numbers::log2e);
    if ((phase += step) >= strip.period) phase -= strip.period;
  }
  std::fill(out + run.count, out + padded, T{});
}

namespace detail {
/// The bias of one key for the queries `lane` .. `lane` + lanes<T> - 1, of which there are `count` in all.
template <class T>
simd::Vec<T> load_bias(const T* of_key, std::int64_t stride, std::int64_t lane, std::int64_t count) {
  if (stride == 0) return simd::broadcast(*of_key);
  if (stride == 1) return simd::load_partial<T>(of_key + lane, count - lane);
  T buffer[static_cast<std::size_t>(simd::lanes<T>)];
  for (int i = 0; i < simd::lanes<T>; ++i) buffer[i] = of_key[std::min(lane + i, count - 1) * stride];
  return simd::load<T>(buffer);
}
}  // namespace detail

/// softcap, bias and ALiBi, in this order, of keys [begin, end), which must be steps of `keys`. Where `derivative` is
/// not null and there is a softcap, its derivative by the product goes there, in the layout of the scores.
template <class T>
void modify_scores(const ScoreRules<T>& rules, const Progression& keys, const Progression& queries, ScoreBlock<T> block,
                   T* derivative = nullptr) {
  using V = simd::Vec<T>;
  V steps;
  for (int i = 0; i < simd::lanes<T>; ++i) steps[i] = static_cast<T>(i);
  const T inverse = rules.softcap != 0 ? 1 / rules.softcap : T{}, step = static_cast<T>(queries.step);
  for (std::int64_t key = block.begin; key < block.end; ++key) {
    T* row = block.row(key);
    const T* bias = rules.bias
                        ? rules.bias + (keys.row + key * keys.stride) * rules.bias_key + queries.row * rules.bias_query
                        : nullptr;
    const std::int64_t distance = queries.position - (keys.position + key * keys.step);  // of lane 0
    for (std::int64_t lane = 0; lane < block.lanes; lane += simd::lanes<T>) {
      V score = simd::load<T>(row + lane);
      if (rules.softcap != 0) {
        const V t = simd::tanh(score * inverse);
        if (derivative) simd::store(derivative + key * block.stride + lane, T(1) - t * t);
        score = rules.softcap * t;
      }
      if (bias)
        score += static_cast<T>(std::numbers::log2e) *
                 detail::load_bias(bias, rules.bias_query * queries.stride, lane, queries.count);
      if (rules.slope != 0)
        score -= rules.slope * simd::detail::abs<T>(static_cast<T>(distance + lane * queries.step) + steps * step);
      simd::store(row + lane, score);
    }
  }
}

/// Scores of the pairs for which keeps(query position, key position) is false become -infinity.
template <class T, class Keeps>
void drop_pairs(const Progression& keys, const Progression& queries, ScoreBlock<T> block, const Keeps& keeps) {
  const std::int64_t count = std::min(block.lanes, queries.count);
  for (std::int64_t key = block.begin; key < block.end; ++key)
    for (std::int64_t i = 0; i < count; ++i)
      if (!keeps(queries.position + i * queries.step, keys.position + key * keys.step))
        block.row(key)[i] = -std::numeric_limits<T>::infinity();
}

/// Calls f(key, lane, factors) for every key of the block and every simd::lanes<T> queries of it: 0 for pairs that
/// dropout drops, else 1 / (1 - p).
template <class T, class F>
void for_each_dropout(const ScoreRules<T>& rules, const Progression& keys, const Progression& queries,
                      const ScoreBlock<T>& block, const F& f) {
  constexpr int width = simd::lanes<T>, chunk = philox_lanes;
  static_assert(width % chunk == 0);
  const auto counter = [](std::uint32_t word) { return simd::broadcast(std::uint64_t{word}); };
  for (std::int64_t lane = 0; lane < block.lanes; lane += width) {
    for (std::int64_t key = block.begin; key < block.end;) {
      const std::int64_t group = (keys.position + key * keys.step) >> 2;
      std::uint32_t words[4][static_cast<std::size_t>(width)];
      for (int part = 0; part < width; part += chunk) {
        PhiloxLanes query{};
        for (int i = 0; i < chunk; ++i)
          query[i] = static_cast<std::uint64_t>(queries.position + (lane + part + i) * queries.step);
        const std::uint32_t low = static_cast<std::uint32_t>(rules.batch << 16 ^ rules.head),
                            high = static_cast<std::uint32_t>(group >> 32) << 16;
        PhiloxLanes x[4] = {counter(static_cast<std::uint32_t>(group)), query, counter(low),
                            ((query >> 32) & 0xffffu) | std::uint64_t{high}};
        philox(x, rules.dropout.key0, rules.dropout.key1);
        for (int w = 0; w < 4; ++w)
          for (int i = 0; i < chunk; ++i) words[w][part + i] = static_cast<std::uint32_t>(x[w][i]);
      }
      for (; key < block.end && (keys.position + key * keys.step) >> 2 == group; ++key) {
        const std::uint32_t* word = words[(keys.position + key * keys.step) & 3];
        T factor[static_cast<std::size_t>(width)];
        for (int i = 0; i < width; ++i) factor[i] = word[i] >= rules.dropout.threshold ? rules.kept : T{};
        f(key, lane, simd::load<T>(factor));
      }
    }
  }
}

/// Weights of the block times 0 or 1 / (1 - p).
template <class T>
void drop_weights(const ScoreRules<T>& rules, const Progression& keys, const Progression& queries,
                  const ScoreBlock<T>& block) {
  for_each_dropout(rules, keys, queries, block, [&](std::int64_t key, std::int64_t lane, simd::Vec<T> factor) {
    T* weight = block.row(key) + lane;
    simd::store(weight, factor * simd::load<T>(weight));
  });
}

}  // namespace poolgrad::kernels::attention
