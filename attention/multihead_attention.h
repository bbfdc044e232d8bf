// Multi-head attention as the mixer of a transformer block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "attention/attend.h"
#include "attention/shard.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/sequence_mixer.h"

namespace poolgrad::attention {

struct MultiheadAttentionOptions {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 4;  // groups of heads / kv_heads query heads share keys and values
  Pattern pattern = Pattern::causal();
  std::optional<double> rope_base = 10000.0;  // rotary positions; none where absent
  bool bias = false;
  double output_deviation = -1.0;  // of the output projection; negative: 1 / sqrt(width)
  /// RMSNorm of the queries and of the keys of every head, before they are rotated (Dehghani et al. 2023).
  bool qk_norm = false;
  std::optional<double> softcap = std::nullopt;  // AttendOptions::softcap
  bool alibi = false;                            // AttendOptions::alibi with alibi_slopes()
  bool sinks = false;                            // AttendOptions::sinks, learned; they start at 0
  /// Of normalised weights, in training mode only; drawn from the parameters' generator, which must outlive the module.
  double dropout = 0.0;
  /// Ranks of a ring within this process that attend together, see ring_attend_all(); with a state, one of them does.
  int ring_size = 1;
  Layout ring_layout = Layout::zigzag;
};

/// (B, T, width) -> (B, T, width): one packed projection to heads + 2 kv_heads heads, rotary positions on queries and
/// keys, attend(), output projection. Without qk_norm, queries, keys and values are views of the packed projection.
class MultiheadAttention : public nn::SequenceMixer {
 public:
  /// Throws ValueError where width does not divide by heads or heads by kv_heads, for an odd head width with rope, a
  /// softcap that is not positive, a dropout outside [0, 1) and a ring_size below 1.
  MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                     const nn::ParameterOptions& parameters = {});

  /// With a state, keys and values of earlier positions are kept there and attended to; positions go on counting. What
  /// comes out is what one call for the whole sequence gives, if the pattern is causal.
  Tensor forward(const Tensor& x, nn::SequenceState* state = nullptr) override;

 private:
  /// (B, T, heads, D) and twice (B, T, kv_heads, D), for x at `position`.
  std::vector<Tensor> project(const Tensor& x, std::int64_t position);

  MultiheadAttentionOptions options_;
  std::int64_t head_dim_;
  nn::Linear projection_, output_;
  std::unique_ptr<nn::RMSNorm> q_norm_, k_norm_;
  Tensor slopes_, sinks_;
  Generator* generator_;
};

}  // namespace poolgrad::attention
