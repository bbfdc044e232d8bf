// Language models whose blocks mix by attention.
#pragma once

#include <memory>

#include "attention/modules/multihead_attention.h"
#include "nn/language_model.h"

namespace poolgrad::attention {

/// Makes MultiheadAttention like `options`, but with the heads, positions and biases of the model's configuration; its
/// output projection starts at 0.
nn::MixerFactory attention_mixer(const MultiheadAttentionOptions& options);
nn::MixerFactory attention_mixer(const Pattern& pattern);

/// nn::LanguageModel with attention_mixer().
std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config,
                                                       const MultiheadAttentionOptions& options,
                                                       const nn::ParameterOptions& parameters = {});
std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& parameters = {});

}  // namespace poolgrad::attention
