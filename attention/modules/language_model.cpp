#include "attention/modules/language_model.h"

namespace poolgrad::attention {

nn::MixerFactory attention_mixer(const MultiheadAttentionOptions& options) {
  return [options](const nn::LanguageModelConfig& config,
                   const nn::ParameterOptions& parameters) -> std::unique_ptr<nn::SequenceMixer> {
    MultiheadAttentionOptions mixer = options;
    mixer.heads = config.heads;
    mixer.kv_heads = config.kv_heads;
    mixer.bias = config.biases;
    mixer.output_deviation = 0.0;
    if (config.positions == nn::Positions::learned) mixer.rope_base.reset();
    return std::make_unique<MultiheadAttention>(config.width, mixer, parameters);
  };
}

nn::MixerFactory attention_mixer(const Pattern& pattern) {
  return attention_mixer(MultiheadAttentionOptions{.pattern = pattern});
}

std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config,
                                                       const MultiheadAttentionOptions& options,
                                                       const nn::ParameterOptions& parameters) {
  return std::make_unique<nn::LanguageModel>(config, attention_mixer(options), parameters);
}

std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& parameters) {
  return make_language_model(config, MultiheadAttentionOptions{.pattern = pattern}, parameters);
}

}  // namespace poolgrad::attention
