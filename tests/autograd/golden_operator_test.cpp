// Results and gradients of operators, compared with f64 numbers of an independent framework. golden_operators.py in
// this folder made them.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

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

struct GoldenYarn {
  double base, factor;
  std::int64_t trained_context;
  double magnitude;
  std::vector<double> frequencies;  // rounded to f32
};

const std::vector<Golden>& golden() {
  static const std::vector<Golden> all = {
#include "tests/autograd/golden_operators.inc"
  };
  return all;
}

// At position 1 a vector of ones becomes m (cos f - sin f, sin f + cos f), for the frequency f of every pair.
TEST(GoldenOperators, RopeUsesTheYarnFrequenciesOfHuggingFace) {
  static const std::vector<GoldenYarn> yarns = {
#include "tests/autograd/golden_yarn.inc"
  };
  for (const GoldenYarn& yarn : yarns) {
    const auto half = static_cast<std::int64_t>(yarn.frequencies.size());
    const Tensor ones_in_f64 = ones({1, 1, 1, 2 * half}, {.dtype = DType::f64});
    const std::vector<double> found =
        rope(ones_in_f64, 1, {yarn.base, RopeScaling::yarn, yarn.factor, yarn.trained_context}).to_vector<double>();
    for (std::int64_t d = 0; d < half; ++d) {
      const double x = found[static_cast<std::size_t>(d)], y = found[static_cast<std::size_t>(d + half)];
      EXPECT_NEAR(std::hypot(x, y) / std::numbers::sqrt2, yarn.magnitude, 1e-12) << yarn.base << ", pair " << d;
      const double frequency = yarn.frequencies[static_cast<std::size_t>(d)];
      EXPECT_NEAR(std::atan2(y, x) - std::numbers::pi / 4, frequency, 4 * 0x1p-24 * frequency + 1e-15)
          << yarn.base << ", pair " << d;
    }
  }
}

TEST(GoldenOperators, MatchResultsAndGradientsOfAnotherFramework) {
  for (const Golden& example : golden()) {
    std::vector<Tensor> inputs, wanted;
    for (const Array& input : example.inputs) {
      inputs.push_back(input.tensor());
      if (!input.integer) wanted.push_back(inputs.back().set_requires_grad());
    }

    const Tensor output = find_operator(example.name).run(inputs)[0];
    const std::vector<Tensor> gradients = grad({output}, wanted, {example.weight.tensor()});

    EXPECT_TRUE(allclose(output, example.output.tensor(), 1e-12, 1e-13)) << example.name;
    ASSERT_EQ(gradients.size(), example.gradients.size()) << example.name;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(allclose(gradients[i], example.gradients[i].tensor(), 1e-12, 1e-13))
          << example.name << ", gradient " << i;
  }
}

}  // namespace
}  // namespace poolgrad::testing
