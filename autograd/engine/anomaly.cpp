#include "autograd/engine/anomaly.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "allocator/error.h"

namespace poolgrad {
namespace {

thread_local bool enabled = false;

/// "nan ... at (2, 5)" for the first bad element in row-major order; "" where there is none.
std::string find_bad(const Tensor& tensor, bool negative_infinity_is_bad, const std::string& where) {
  if (!tensor.defined() || !is_floating(tensor.dtype()) || tensor.device().is_sim()) return "";
  const std::vector<double> values = tensor.to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    if (std::isfinite(x) || (std::isinf(x) && x < 0 && !negative_infinity_is_bad)) continue;
    return fmt::format("{} in {} {} at {}",
                       std::isnan(x) ? "nan"
                       : x > 0       ? "inf"
                                     : "-inf",
                       where, describe(tensor), to_string(unravel(static_cast<std::int64_t>(i), tensor.shape())));
  }
  return "";
}

}  // namespace

AnomalyMode::AnomalyMode() : previous_(std::exchange(enabled, true)) {}
AnomalyMode::~AnomalyMode() { enabled = previous_; }
bool anomaly_mode_enabled() { return enabled; }

void check_outputs(const std::string& name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string found = find_bad(outputs[i], false, fmt::format("output {}", i));
    if (found.empty()) continue;
    std::vector<std::string> shapes;
    for (const Tensor& input : inputs) shapes.push_back(TensorMeta(input).describe());
    throw Error(fmt::format("[{}] forward produced {}; inputs {}", name, found, fmt::join(shapes, ", ")));
  }
}

void check_gradients(const Node& node, const Gradients& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::string found = find_bad(gradients[i], true, fmt::format("the gradient of input {}", i));
    if (found.empty()) continue;
    std::vector<std::string> shapes;
    for (const TensorMeta& input : node.inputs()) shapes.push_back(input.describe());
    throw Error(
        fmt::format("[{}] backward produced {}; forward inputs {}", node.name(), found, fmt::join(shapes, ", ")));
  }
}

}  // namespace poolgrad
