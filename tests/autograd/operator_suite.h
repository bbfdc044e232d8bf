// Tests generated from the operator table, one body each, for every operator and case. Each program runs them on its
// device: the CPU, or cuda:0 (a GPU or the emulated device).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "autograd/operators.h"
#include "tests/autograd/operator_run.h"

namespace poolgrad::testing {

/// Device of the suite, and whether tests that do not depend on the case run all cases of an operator or one. Each
/// program defines it.
struct Suite {
  Device device;
  bool all_cases;
};
extern const Suite suite;

inline Tensors on_device(const Tensors& tensors, Device device) {
  Tensors result;
  for (const Tensor& tensor : tensors) result.push_back(to(tensor, device));
  return result;
}

class OperatorTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Operator& entry() const { return operator_table()[GetParam()]; }
  std::string where(const OperatorCase& example) const { return entry().name + ", " + example.label; }

  /// The operator on the suite's device, with inputs and outputs on the CPU; the copies are differentiable.
  TensorFunction there_and_back() const {
    return [this](const Tensors& inputs) { return on_device(entry().run(on_device(inputs, suite.device)), cpu); };
  }
  /// An output without elements depends on no input.
  GradcheckOptions checks_of(const OperatorCase& example) const {
    GradcheckOptions options = entry().gradcheck;
    options.allow_unused |=
        std::ranges::all_of(entry().run(example.inputs), [](const Tensor& x) { return x.numel() == 0; });
    return options;
  }
  /// All cases, or the first one with elements.
  std::vector<OperatorCase> some_cases() const;
};

/// All entries except those whose result is on a device without numbers.
std::vector<std::size_t> entries_with_numbers();
std::string name_of_entry(const ::testing::TestParamInfo<std::size_t>& info);

}  // namespace poolgrad::testing
