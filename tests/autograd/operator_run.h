// Runs an entry of the operator table forward and backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad::testing {

using Tensors = std::vector<Tensor>;

/// The same inputs; the floating ones as leaves that require grad.
inline Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.detach());
    if (is_floating(input.dtype())) leaves.back().set_requires_grad();
  }
  return leaves;
}

/// Numbers that every floating dtype holds exactly: -2, -1.75, ..., 2 in a fixed shuffle.
inline Tensor weights_like(const Tensor& output) {
  std::vector<double> values(static_cast<std::size_t>(output.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 11 % 17) * 0.25 - 2.0;
  return to(to(from_data<double>(values, output.shape()), output.dtype()), output.device());
}

struct Results {
  Tensors outputs, gradients;  // a gradient for each floating input; zeros if it did not contribute
};

inline Results run(const Operator& entry, const Tensors& inputs) {
  const Tensors leaves = leaves_of(inputs);
  Results results{.outputs = entry.run(leaves), .gradients = {}};
  Tensors wanted, roots, seeds;
  for (const Tensor& leaf : leaves)
    if (leaf.requires_grad()) wanted.push_back(leaf);
  for (const Tensor& output : results.outputs)
    if (output.requires_grad()) roots.push_back(output), seeds.push_back(weights_like(output));
  if (!roots.empty()) results.gradients = grad(roots, wanted, seeds, {}, /*allow_unused=*/true);
  for (std::size_t i = 0; i < results.gradients.size(); ++i)
    if (!results.gradients[i].defined()) results.gradients[i] = zeros_like(wanted[i]);
  return results;
}

inline Tensors converted(const Tensors& inputs, DType dtype) {
  Tensors result;
  for (const Tensor& input : inputs) result.push_back(is_floating(input.dtype()) ? to(input, dtype) : input);
  return result;
}

/// Scale of rounding errors: the largest magnitude in all of `tensors`, because sums may cancel. At least 1 if one of
/// them is a single number.
inline double scale_of(const Tensors& tensors) {
  double largest = 1e-30;
  for (const Tensor& tensor : tensors) {
    if (tensors.size() == 1 && tensor.numel() == 1) largest = 1.0;
    for (const double value : tensor.to_vector<double>()) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

}  // namespace poolgrad::testing
