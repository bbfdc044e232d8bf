// What becomes of the products of queries and keys before the softmax, and of the weights after it: softcap, bias,
// ALiBi, multiplicities, single pairs that do not count, dropout. Forward and backward share it, so that both see the
// same numbers. A block of scores is stored by key: row t is step t of `keys`, lane i step i of `queries`. Scores are
// in base 2: multiplied by log2(e), so that a weight is exp2(score - lse).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cpu/attention/mask.h"
#include "kernels/cpu/simd/philox_lanes.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/definition/attention_dropout.h"

namespace poolgrad::kernels::attention {

/// Keys or queries of a block of scores, at most.
inline constexpr std::size_t score_room = 192;

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

/// out[t] = log_multiplicity of step t of a part of a run, in base 2, up to `padded` >= keys.count; the rest 0.
template <class T>
void log_multiplicities(const AttentionProgram& program, const AttentionRun& of, const Progression& keys, T* out,
                        std::int64_t padded) {
  const double* const table = program.log_multiplicity + of.table;
  const std::int64_t period = of.period, step = floor_mod(keys.step, period);
  std::int64_t phase = floor_mod(keys.position, period);
  for (std::int64_t t = 0; t < keys.count; ++t) {
    out[t] = static_cast<T>(table[phase]) * static_cast<T>(std::numbers::log2e);
    if ((phase += step) >= period) phase -= period;
  }
  std::fill(out + keys.count, out + padded, T{});
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

/// Lanes are rows of the schedule: scores of pairs that have been counted before become -infinity.
template <class T>
void hide_counted(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h, const Progression& keys,
                  const Progression& queries, ScoreBlock<T> block) {
  for_each_agreement<score_room>(
      schedule, of, h, queries, {0, std::min(block.lanes, queries.count)}, keys, {block.begin, block.end},
      [&](std::int64_t begin, std::int64_t end, const bool* counted) {
        for (std::int64_t key = block.begin; key < block.end; ++key)
          if (counted[key])
            std::fill(block.row(key) + begin, block.row(key) + end, -std::numeric_limits<T>::infinity());
      });
}
/// The same where keys are rows of the schedule.
template <class T>
void hide_counted_by_key(const AttentionSchedule& by_key, const AttentionRun& of, std::int64_t h,
                         const Progression& keys, const Progression& queries, ScoreBlock<T> block) {
  const std::int64_t count = std::min(block.lanes, queries.count);
  for_each_agreement<score_room>(by_key, of, h, keys, {block.begin, block.end}, queries, {0, count},
                                 [&](std::int64_t begin, std::int64_t end, const bool* counted) {
                                   for (std::int64_t key = begin; key < end; ++key) {
                                     T* row = block.row(key);
                                     for (std::int64_t i = 0; i < count; ++i)
                                       row[i] = counted[i] ? -std::numeric_limits<T>::infinity() : row[i];
                                   }
                                 });
}

/// Calls f(key, lane, factors) for every key of the block and every simd::lanes<T> queries of it: 0 for pairs that
/// dropout drops, else 1 / (1 - p).
template <class T, class F>
[[gnu::always_inline]] inline void for_each_dropout(const ScoreRules<T>& rules, const Progression& keys,
                                                    const Progression& queries, const ScoreBlock<T>& block,
                                                    const F& f) {
  constexpr int width = simd::lanes<T>;
  constexpr std::size_t chunks = width / philox_lanes;
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  using Bits = simd::Vec<Word>;
  static_assert(width % philox_lanes == 0);
  const auto counter = [](std::uint32_t word) { return simd::broadcast(std::uint64_t{word}); };
  const Bits threshold = simd::broadcast(Word{rules.dropout.threshold});
  const simd::Vec<T> kept = simd::broadcast(rules.kept), dropped{};
  const std::uint32_t low = static_cast<std::uint32_t>(rules.batch << 16 ^ rules.head);
  for (std::int64_t lane = 0; lane < block.lanes; lane += width) {
    PhiloxLanes query[chunks];
    for (std::size_t part = 0; part < chunks; ++part) {
      const std::int64_t first = lane + static_cast<std::int64_t>(part) * philox_lanes;
      PhiloxLanes positions{};
      for (int i = 0; i < philox_lanes; ++i)
        positions[i] = static_cast<std::uint64_t>(queries.position + (first + i) * queries.step);
      query[part] = positions;
    }
    for (std::int64_t key = block.begin; key < block.end;) {
      const std::int64_t group = (keys.position + key * keys.step) >> 2;
      const std::uint32_t high = static_cast<std::uint32_t>(group >> 32) << 16;
      Bits words[4];
#pragma GCC unroll 2
      for (std::size_t part = 0; part < chunks; ++part) {
        PhiloxLanes x[4] = {counter(static_cast<std::uint32_t>(group)), query[part], counter(low),
                            ((query[part] >> 32) & 0xffffu) | std::uint64_t{high}};
        philox(x, rules.dropout.key0, rules.dropout.key1);
        for (int w = 0; w < 4; ++w) {
          if constexpr (sizeof(T) == 4) {
            using Half = std::uint32_t __attribute__((vector_size(4 * philox_lanes)));
            const Half half = __builtin_convertvector(x[w], Half);
            std::memcpy(reinterpret_cast<char*>(&words[w]) + part * sizeof(Half), &half, sizeof(Half));
          } else {
            words[w] = x[w] & 0xffffffffu;
          }
        }
      }
      for (; key < block.end && (keys.position + key * keys.step) >> 2 == group; ++key)
        f(key, lane, words[(keys.position + key * keys.step) & 3] >= threshold ? kept : dropped);
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
