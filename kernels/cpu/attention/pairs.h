// Tiles of attention as operands of products of pairs (kernels/cpu/gemm/pair_product.h): rows of bf16 become matrices
// of words, weights in f32 are rounded to bf16 on the way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention/tiles.h"
#include "kernels/cpu/gemm/pair_product.h"
#include "kernels/cpu/simd/simd.h"

namespace poolgrad::kernels::attention {

using Words = Vec<std::uint32_t>;
inline constexpr int word_lanes = lanes<float>;
/// Lengths of sums, in elements, are multiples of this.
inline constexpr std::int64_t pair_depth_step = 2 * pair_step;
/// Whether the tiles are made of whole operands: not with vectors of 16 bytes.
inline constexpr bool has_pairs = group_lanes<float> % pair_step == 0 && pair_depth_step % group_lanes<float> == 0;
/// Pairs that `columns` elements take, with zeros at the end.
constexpr std::int64_t padded_pairs(std::int64_t columns) { return round_up(columns, pair_depth_step) / 2; }

/// The first `count` elements of a row as pairs, the rest of the vector 0.
inline Words load_pairs(const BFloat16* from, std::int64_t count) {
  Words words{};
  if (count >= 2 * word_lanes)
    std::memcpy(&words, from, sizeof(words));
  else if (count > 0)
    std::memcpy(&words, from, static_cast<std::size_t>(count) * sizeof(BFloat16));
  return words;
}
/// The first `count` elements of a row, each in the low half of a word, the rest 0.
inline Words load_low(const BFloat16* from, std::int64_t count) {
  simd::detail::Bits16 bits{};
  if (count >= word_lanes)
    std::memcpy(&bits, from, sizeof(bits));
  else if (count > 0)
    std::memcpy(&bits, from, static_cast<std::size_t>(count) * sizeof(BFloat16));
  return __builtin_convertvector(bits, Words);
}
inline void store_words(std::uint32_t* to, Words words) { std::memcpy(to, &words, sizeof(words)); }

/// word_lanes x word_lanes words, transposed.
inline void transpose_words(Words* words) {
  Vec<float> rows[word_lanes];
  for (int i = 0; i < word_lanes; ++i) rows[i] = reinterpret_cast<Vec<float>>(words[i]);
  simd::transpose<float>(rows);
  for (int i = 0; i < word_lanes; ++i) words[i] = reinterpret_cast<Words>(rows[i]);
}

/// f32 as bf16 in the high half of a word, rounded to nearest even; the low half is anything.
inline Words round_to_high(Vec<float> value) {
  const auto bits = reinterpret_cast<Words>(value);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return value != value ? bits | 0x400000u : rounded;
}

/// Operand a of `count` rows: out[i * pairs + p] with pairs = padded_pairs(columns). Rows up to `rows` repeat the last.
inline void pack_pair_rows(std::uint32_t* out, Head<const BFloat16> from, std::int64_t count, std::int64_t rows,
                           std::int64_t columns) {
  const std::int64_t pairs = padded_pairs(columns);
  for (std::int64_t i = 0; i < rows; ++i, out += pairs) {
    const BFloat16* row = from.row(std::min(i, count - 1));
    for (std::int64_t p = 0; p < pairs; p += word_lanes) store_words(out + p, load_pairs(row + 2 * p, columns - 2 * p));
  }
}

/// Operand b, summed over columns: out[p * stride + i], i below `count` rounded up to whole groups of lanes; 0 beyond
/// count.
inline void pack_pair_columns(std::uint32_t* out, std::int64_t stride, Head<const BFloat16> from, std::int64_t count,
                              std::int64_t columns) {
  for (std::int64_t i = 0; i < round_up(count, group_lanes<float>); i += word_lanes)
    for (std::int64_t p = 0; p < padded_pairs(columns); p += word_lanes) {
      Words words[word_lanes];
      for (int r = 0; r < word_lanes; ++r)
        words[r] = i + r < count ? load_pairs(from.row(i + r) + 2 * p, columns - 2 * p) : Words{};
      transpose_words(words);
      for (int r = 0; r < word_lanes; ++r) store_words(out + (p + r) * stride + i, words[r]);
    }
}

/// Operand b, summed over rows: out[p * stride + j] has rows 2 p and 2 p + 1; 0 beyond `count` and `columns`, up to
/// padded_pairs(count) and `stride`, a multiple of pair_step.
inline void pack_row_pairs(std::uint32_t* out, std::int64_t stride, Head<const BFloat16> from, std::int64_t count,
                           std::int64_t columns) {
  for (std::int64_t p = 0; p < padded_pairs(count); ++p, out += stride)
    for (std::int64_t j = 0; j < stride; j += word_lanes) {
      const Words low = 2 * p < count ? load_low(from.row(2 * p) + j, columns - j) : Words{};
      const Words high = 2 * p + 1 < count ? load_low(from.row(2 * p + 1) + j, columns - j) : Words{};
      store_words(out + j, low | high << 16);
    }
}

/// A row of what pack_row_pairs() made becomes 0.
inline void clear_pair_row(std::uint32_t* packed, std::int64_t row, std::int64_t stride) {
  for (std::int64_t j = 0; j < stride; ++j) packed[row / 2 * stride + j] &= row % 2 ? 0xffffu : 0xffff0000u;
}

/// Weights by key (weights[key * width + lane]), keys [begin, end), as operand a of sums over keys: word (lane, p) of
/// `out` has keys `first` + 2 p and + 1, where `first` <= begin; 0 for keys outside. p < pairs, a multiple of
/// pair_step; lane < `lane_count`, a multiple of pair_step.
inline void pack_weights(std::uint32_t* out, std::int64_t pairs, const float* weights, std::int64_t width,
                         std::int64_t first, Range keys, std::int64_t lane_count) {
  const auto rounded = [&](std::int64_t key, std::int64_t lane) {
    return key >= keys.begin && key < keys.end ? round_to_high(simd::load<float>(weights + key * width + lane))
                                               : Words{};
  };
  for (std::int64_t lane = 0; lane < lane_count; lane += word_lanes)
    for (std::int64_t p = 0; p < pairs; p += word_lanes) {
      Words words[word_lanes];
      for (int r = 0; r < word_lanes; ++r) {
        const std::int64_t key = first + 2 * (p + r);
        words[r] = rounded(key, lane) >> 16 | (rounded(key + 1, lane) & 0xffff0000u);
      }
      transpose_words(words);
      for (int r = 0; r < word_lanes; ++r) store_words(out + (lane + r) * pairs + p, words[r]);
    }
}

/// Weights by key as operand a of sums over queries: word (key, p) of `out` has lanes 2 p and 2 p + 1; 0 for keys from
/// `key_count` and lanes from `lane_count` (whole vectors) on. key < `rows`, p < pairs, multiples of pair_step.
inline void pack_weight_rows(std::uint32_t* out, std::int64_t rows, std::int64_t pairs, const float* weights,
                             std::int64_t width, std::int64_t key_count, std::int64_t lane_count) {
  for (std::int64_t key = 0; key < rows; ++key)
    for (std::int64_t lane = 0; lane < 2 * pairs; lane += word_lanes)
      simd::store(
          reinterpret_cast<BFloat16*>(out + key * pairs) + lane,
          key < key_count && lane < lane_count ? simd::load<float>(weights + key * width + lane) : Vec<float>{});
}

}  // namespace poolgrad::kernels::attention
