// Results and gradients of operators against numbers made by an independent framework in f64; the script that made
// them, golden_operators.py, lies beside this file.
#include <gtest/gtest.h>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad::testing {
namespace {

struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
  bool integer;

  Tensor tensor() const {
    const Tensor numbers = from_data<double>(values, Shape(shape));
    return integer ? to(numbers, DType::i64) : numbers;
  }
};

struct Golden {
  const char* name;
  std::vector<Array> inputs;
  Array weight, output;
  std::vector<Array> gradients;
};

const std::vector<Golden>& golden() {
  static const std::vector<Golden> all = {
#include "tests/autograd/golden_operators.inc"
  };
  return all;
}

TEST(GoldenOperators, GiveTheResultsAndGradientsOfAnotherFramework) {
  for (const Golden& example : golden()) {
    std::vector<Tensor> inputs, wanted;
    for (const Array& input : example.inputs) {
      inputs.push_back(input.tensor());
      if (!input.integer) wanted.push_back(inputs.back().set_requires_grad());
    }

    const Tensor output = find_operator(example.name).run(inputs)[0];
    const std::vector<Tensor> gradients = grad({output}, wanted, {example.weight.tensor()});

    EXPECT_TRUE(all_close(output, example.output.tensor(), 1e-12, 1e-13)) << example.name;
    ASSERT_EQ(gradients.size(), example.gradients.size()) << example.name;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(all_close(gradients[i], example.gradients[i].tensor(), 1e-12, 1e-13))
          << example.name << ", gradient " << i;
  }
}

}  // namespace
}  // namespace poolgrad::testing
