// Exact attention, fused: one operation for every pattern.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/pattern/pattern.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// The positions of keys, for a sequence that comes in chunks.
struct KeyPositions {
  /// Keys from row `gap_begin` on lie `gap` positions further on, at most 2^60. No query sees the keys in the gap any
  /// more.
  std::int64_t gap_begin = 0, gap = 0;
  /// Length of the whole sequence, for patterns that depend on it; at least up to the last key.
  std::int64_t whole = 0;

  /// Returns the length with `rows` keys.
  std::int64_t length(std::int64_t rows) const { return whole > rows + gap ? whole : rows + gap; }
};

/// cu_seqlens of each row of a batch: document d of row b is the positions [rows[b][d], rows[b][d + 1]).
using RowDocuments = std::vector<std::vector<std::int64_t>>;
/// Returns the documents of tokens (B, T) i64: a document ends after each token `separator`. Waits for a device; a
/// simulated one has zeros. Throws ShapeError and DTypeError for other tokens.
RowDocuments documents_of(const Tensor& tokens, std::int64_t separator);

/// The options of a call of attend() or of a module, besides its operands and its pattern.
struct AttendOptions {
  /// pattern & Pattern::causal(): keys up to the query's own position only.
  bool causal = false;
  /// Factor of the scores; by default 1 / sqrt(D).
  std::optional<double> scale = std::nullopt;
  Alignment alignment = Alignment::bottom_right;
  KeyPositions key_positions = {};
  /// c of c tanh(s / c), applied to the scaled product before any bias; by default off.
  std::optional<double> softcap = std::nullopt;
  /// Added to the scores: (B or 1, Hq or 1, Nq or 1, Nk or 1), floating; differentiable. -infinity removes a pair, as a
  /// pattern does.
  Tensor bias = {};
  /// (B, Nk) bool, true for padding: no query of the batch entry sees these keys, for any pattern. They still count as
  /// positions. Their rows of k and v have no effect, even if they are NaN.
  Tensor key_padding = {};
  /// The documents of each row, if rows differ; empty: those of the pattern. A query sees keys of its own document
  /// only. Self-attention by dense, causal and window patterns, without bias, dropout, chunks and out_over_q; else
  /// ValueError, and for lists that do not begin with 0, decrease, or do not end with N. Pattern::documents() serves
  /// rows that are alike. Each call with such lists compiles a program of its own.
  RowDocuments documents = {};
  /// ALiBi: -slopes[h] |i - j| by absolute positions; (Hq), floating, no gradient. See alibi_slopes().
  Tensor alibi = {};
  /// (Hq) logits of a key without a value, visible to every query of the head; differentiable.
  Tensor sinks = {};
  /// Probability in [0, 1) that a normalized weight is dropped. The mask is a function of the generator's range and of
  /// (batch, head, i, j) only. The other weights are scaled by 1 / (1 - p); lse is not affected.
  double dropout = 0.0;
  Generator* generator = nullptr;  // nullptr: default_generator()
  /// Length of the whole sequence if q, k and v are this rank's part; 0: determined by the module. Only for modules
  /// that divide sequences among ranks; attend() throws ValueError.
  std::int64_t whole = 0;
  /// Index of the first batch entry in a larger batch, for dropout.
  std::int64_t first_batch = 0;

  /// Inference: the result may be written over q, which must not be used afterwards. Throws ValueError unless Dv == D,
  /// no operand needs a gradient, q is apart from the other operands, and the pattern has one pass.
  bool out_over_q = false;
  /// The backward pass writes dq over out, which must not be used afterwards: a second backward pass throws. Needs Dv
  /// == D.
  bool dq_over_out = false;
};

/// out (B, Nq, Hq, Dv) in the dtype of the inputs; lse (B, Hq, Nq) in the compute dtype.
struct Attended {
  Tensor out, lse;
};

/// For s = mod(scale <q_i, k_j>) + bias and Z_i = sum_j m_h(i, j) e^s + e^sink_h, returns out_i = sum_j m e^s v_j / Z_i
/// and lse_i = log Z_i. q is (B, Nq, Hq, D), k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv). Hq is a multiple of Hkv: query head
/// h uses key head floor(h / (Hq / Hkv)).
///
/// A query without a visible key or sink gets out 0, lse -infinity and zero gradients. Keys that a row does not see
/// have no effect on it, even if they are NaN or infinity. Throws ShapeError, DTypeError (not floating, or mixed),
/// DeviceError, ValueError. Both results are differentiable twice; only the second derivative needs O(Nq Nk) memory.
/// Copies no operand with stride 1 in the last dimension, so q, k and v may be slices of one packed projection.
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern = Pattern::dense(),
                const AttendOptions& options = {}, CallSite = {});

/// Returns the slopes of ALiBi (Press et al. 2021), (heads) f32: 2^(-8 (h + 1) / H) for powers of two, otherwise
/// interpolated as in the paper.
Tensor alibi_slopes(std::int64_t heads, const TensorOptions& options = {}, CallSite = {});

// Attention by its definition, from primitive operators, with O(Nq Nk) memory. Used for second derivatives and tests.

/// Returns the results of attend() with every score in memory; differentiable any number of times. Drops the same
/// weights as attend() with a generator in the same state. Ignores out_over_q and dq_over_out. A row that sees an
/// infinity gives NaN. Throws the errors of attend().
Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Pattern& pattern = Pattern::dense(), const AttendOptions& options = {},
                              CallSite = {});

}  // namespace poolgrad::attention
