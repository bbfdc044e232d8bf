// Exact attention, fused: one operation for every pattern.
#pragma once

#include <optional>

#include "attention/pattern/pattern.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Where keys lie whose sequence is gone through in chunks.
struct KeyPositions {
  /// Keys from row `gap_begin` on lie `gap` positions further on, at most 2^60: between are those that no query sees
  /// any more.
  std::int64_t gap_begin = 0, gap = 0;
  /// Positions of the whole sequence, for what depends on them; at least up to the last key.
  std::int64_t whole = 0;

  /// With `rows` keys.
  std::int64_t length(std::int64_t rows) const { return whole > rows + gap ? whole : rows + gap; }
};

/// Everything about a call of attend() or of a module but its operands and its pattern.
struct AttendOptions {
  /// pattern & Pattern::causal(): keys up to the query's own position only.
  bool causal = false;
  /// Factor of the scores; 1 / sqrt(D) where absent.
  std::optional<double> scale = std::nullopt;
  Alignment alignment = Alignment::bottom_right;
  KeyPositions key_positions = {};
  /// c of c tanh(s / c), applied to the scaled product before any bias; off where absent.
  std::optional<double> softcap = std::nullopt;
  /// Added to the scores: (B or 1, Hq or 1, Nq or 1, Nk or 1), floating; differentiable. -infinity takes a pair away,
  /// as a pattern does.
  Tensor bias = {};
  /// (B, Nk) bool, true for padding: keys that no query of the batch entry sees, whatever the pattern says. Positions
  /// count them as before; what lies in their rows of k and v, NaN included, has no effect.
  Tensor key_padding = {};
  /// ALiBi: -slopes[h] |i - j| by absolute positions; (Hq), floating, no gradient. See alibi_slopes().
  Tensor alibi = {};
  /// (Hq) logits of a key without value that every query of the head sees; differentiable.
  Tensor sinks = {};
  /// Probability in [0, 1) that a normalised weight is dropped, by counter: the mask is a function of the generator's
  /// range and (batch, head, i, j) alone. The others are scaled by 1 / (1 - p); lse is not affected.
  double dropout = 0.0;
  Generator* generator = nullptr;  // default_generator() where null
  /// Length of the whole sequence where q, k and v are this rank's part; 0: the module knows. Only for modules that
  /// divide sequences among ranks; attend() throws ValueError.
  std::int64_t whole = 0;
  /// The number of the first batch entry where this is a part of a larger batch, for what is dropped.
  std::int64_t first_batch = 0;

  /// Inference: the result may be written over q, which must not be used afterwards. Needs Dv == D, no gradient,
  /// q apart from the other operands and a pattern of one pass; ValueError otherwise.
  bool out_over_q = false;
  /// The backward writes dq over out, which must not be used afterwards by anyone (a second backward fails with a
  /// clear error). Needs Dv == D.
  bool dq_over_out = false;
};

/// out (B, Nq, Hq, Dv) in the dtype of the inputs; lse (B, Hq, Nq) in the compute dtype.
struct Attended {
  Tensor out, lse;
};

/// s = mod(scale <q_i, k_j>) + bias, Z_i = sum_j m_h(i, j) e^s + e^sink_h, out_i = sum_j m e^s v_j / Z_i, lse_i = log
/// Z_i for q (B, Nq, Hq, D), k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv), Hq a multiple of Hkv (query head h uses key head
/// floor(h / (Hq / Hkv))). A query that sees no key and no sink gives out 0, lse -infinity and zero gradients. Both
/// results are differentiable, twice as well; only the second derivative needs O(Nq Nk) memory. What a row does not see
/// has no effect on it, NaN and infinity included. Any strides with stride 1 in the last dimension are used without a
/// copy, so q, k and v may be slices of one packed projection. Throws ShapeError, DTypeError (not floating, or mixed),
/// DeviceError, ValueError.
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern = Pattern::dense(),
                const AttendOptions& options = {}, CallSite = {});

/// 2^(-8 (h + 1) / H) for powers of two, interpolated as in the paper otherwise (Press et al. 2021); (heads) f32.
Tensor alibi_slopes(std::int64_t heads, const TensorOptions& options = {}, CallSite = {});

// Attention as its definition says it, from primitive operators: O(Nq Nk) memory. Serves second derivatives and tests.

/// What attend() computes, with every score in memory; differentiable any number of times. Drops the same weights as
/// attend() does with a generator in the same state; the two options about memory are ignored. Where a row sees an
/// infinity, NaN. Throws like attend().
Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Pattern& pattern = Pattern::dense(), const AttendOptions& options = {},
                              CallSite = {});

}  // namespace poolgrad::attention
