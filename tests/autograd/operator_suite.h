// The tests that are generated from the operator table, one body each, for every operator and every case, on the device
// of the program that they are part of: the CPU, or cuda:0, a GPU or the emulated device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "autograd/operators.h"
#include "tests/autograd/operator_run.h"

namespace poolgrad::testing {

/// Where the suite runs, and whether the bodies that are not about cases take all of an operator, or one: each program
/// says so.
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

  /// The operator on the suite's device, with inputs and outputs on the CPU: moving is differentiable.
  TensorFunction there_and_back() const {
    return [this](const Tensors& inputs) { return on_device(entry().run(on_device(inputs, suite.device)), cpu); };
  }
  /// An output without elements depends on nothing.
  GradcheckOptions checks_of(const OperatorCase& example) const {
    GradcheckOptions options = entry().gradcheck;
    options.allow_unused |=
        std::ranges::all_of(entry().run(example.inputs), [](const Tensor& x) { return x.count() == 0; });
    return options;
  }
  /// All cases; or the first that has elements.
  std::vector<OperatorCase> some_cases() const;
};

/// The entries whose results can be compared: all but those that end on a device without numbers.
std::vector<std::size_t> entries_with_numbers();
std::string name_of_entry(const ::testing::TestParamInfo<std::size_t>& info);

}  // namespace poolgrad::testing
