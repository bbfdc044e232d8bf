// A table of vectors.
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace poolgrad::nn {

/// i64 (...) -> (..., width): row `index` of weight (entries, width), which starts normal with the given deviation.
class Embedding : public Layer {
 public:
  Embedding(std::int64_t entries, std::int64_t width, double deviation = 1.0, const ParameterOptions& parameters = {});

  /// IndexError for an index outside [0, entries).
  Tensor forward(const Tensor& index) override;

  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_;
};

}  // namespace poolgrad::nn
