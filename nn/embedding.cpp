#include "nn/embedding.h"

#include "autograd/embedding.h"

namespace poolgrad::nn {

Embedding::Embedding(std::int64_t entries, std::int64_t width, double deviation, const ParameterOptions& parameters)
    : weight_(normal_parameter("weight", {entries, width}, deviation, parameters)) {}

Tensor Embedding::forward(const Tensor& index) { return embedding(weight_, index); }

}  // namespace poolgrad::nn
