// Text from a language model.
#pragma once

#include <cstdint>
#include <string>

#include "nn/language_model.h"

namespace poolgrad::examples {

/// Continues `prompt` by `bytes` bytes, each drawn from the model's distribution with the given temperature; keys and
/// values of earlier bytes are kept. At most the model's context, prompt included, is written. The same number of
/// operators runs on every device.
std::string sample_text(nn::LanguageModel& model, const std::string& prompt, std::int64_t bytes, double temperature,
                        std::uint64_t seed, Device device);

}  // namespace poolgrad::examples
