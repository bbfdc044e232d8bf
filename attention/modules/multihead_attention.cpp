#include "attention/modules/multihead_attention.h"

#include "attention/modules/ring_attention.h"

namespace poolgrad::attention {

MultiheadAttention::MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                                       const nn::ParameterOptions& parameters)
    : MultiheadShell(
          width, options.heads,
          std::make_unique<RingAttention>(
              options.pattern, RingSetup{.ring_size = options.ring_size, .layout = options.ring_layout},
              CoreOptions{.softcap = options.softcap, .dropout = options.dropout, .generator = parameters.generator}),
          {.kv_heads = options.kv_heads,
           .bias = options.bias,
           .layer_norm = false,
           .post_norm = false,
           .qk_norm = options.qk_norm,
           .rope_base = options.rope_base,
           .alibi = options.alibi,
           .sinks = options.sinks,
           .output_deviation = options.output_deviation},
          parameters) {}

}  // namespace poolgrad::attention
