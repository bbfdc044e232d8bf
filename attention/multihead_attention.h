// Multi-head attention as the mixer of a transformer block.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/attend.h"
#include "nn/linear.h"
#include "nn/sequence_mixer.h"

namespace poolgrad::attention {

struct MultiheadAttentionOptions {
  std::int64_t heads = 4;
  std::int64_t kv_heads = 4;  // groups of heads / kv_heads query heads share keys and values
  Pattern pattern = Pattern::causal();
  std::optional<double> rope_base = 10000.0;  // rotary positions; none where absent
  bool bias = false;
  double output_deviation = -1.0;  // of the output projection; negative: 1 / sqrt(width)
};

/// (B, T, width) -> (B, T, width): one packed projection to heads + 2 kv_heads heads, rotary positions on queries and
/// keys, attend(), output projection. Queries, keys and values are views of the packed projection.
class MultiheadAttention : public nn::SequenceMixer {
 public:
  /// Throws ValueError where width does not divide by heads or heads by kv_heads, and for an odd head width with rope.
  MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                     const nn::ParameterOptions& parameters = {});

  /// With a state, keys and values of earlier positions are kept there and attended to; positions go on counting.
  Tensor forward(const Tensor& x, nn::SequenceState* state = nullptr) override;

 private:
  MultiheadAttentionOptions options_;
  std::int64_t head_dim_;
  nn::Linear projection_, output_;
};

}  // namespace poolgrad::attention
