#include "attention/language_model.h"

#include "attention/multihead_attention.h"

namespace poolgrad::attention {

nn::MixerFactory attention_mixer(const Pattern& pattern) {
  return [pattern](const nn::LanguageModelConfig& config,
                   const nn::ParameterOptions& options) -> std::unique_ptr<nn::SequenceMixer> {
    MultiheadAttentionOptions mixer{.heads = config.heads,
                                    .kv_heads = config.kv_heads,
                                    .pattern = pattern,
                                    .bias = config.biases,
                                    .output_deviation = 0.0};
    if (config.positions == nn::Positions::learned) mixer.rope_base.reset();
    return std::make_unique<MultiheadAttention>(config.width, mixer, options);
  };
}

std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& options) {
  return std::make_unique<nn::LanguageModel>(config, attention_mixer(pattern), options);
}

}  // namespace poolgrad::attention
