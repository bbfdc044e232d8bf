// Language models whose blocks mix by attention.
#pragma once

#include <memory>

#include "attention/pattern.h"
#include "nn/language_model.h"

namespace poolgrad::attention {

/// Makes MultiheadAttention with the heads, positions and biases of the model's configuration; its output projection
/// starts at 0.
nn::MixerFactory attention_mixer(const Pattern& pattern);

/// nn::LanguageModel with attention_mixer(pattern).
std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& options = {});

}  // namespace poolgrad::attention
