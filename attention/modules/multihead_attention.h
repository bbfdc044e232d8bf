// Multi-head attention as the mixer of a transformer block.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/modules/multihead.h"
#include "attention/pattern/pattern.h"
#include "attention/ring/shard.h"

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
  /// Ranks of a ring within this process that attend together, see ring_attend_all(); one of them does where there are
  /// fewer queries.
  int ring_size = 1;
  Layout ring_layout = Layout::zigzag;
};

/// MultiheadShell around attend(), or around a ring of it: one packed projection to heads + 2 kv_heads heads, rotary
/// positions on queries and keys, attention, output projection.
class MultiheadAttention : public MultiheadShell {
 public:
  /// Throws ValueError for what MultiheadShell refuses, a softcap that is not positive, a dropout outside [0, 1) and a
  /// ring_size below 1.
  MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                     const nn::ParameterOptions& parameters = {});
};

}  // namespace poolgrad::attention
