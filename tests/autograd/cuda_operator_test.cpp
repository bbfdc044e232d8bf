// Every operator of the table on cuda:0, the emulated device.
#include <gtest/gtest.h>

#include <algorithm>

#include "allocator/caching_allocator.h"
#include "autograd/gradcheck.h"
#include "tensor/compare.h"
#include "tests/autograd/operator_run.h"

namespace poolgrad::testing {
namespace {

constexpr Device gpu{DeviceType::cuda, 0};

Tensors on_device(const Tensors& tensors, Device device) {
  Tensors result;
  for (const Tensor& tensor : tensors) result.push_back(to(tensor, device));
  return result;
}

/// The operator on cuda:0, with inputs and outputs on the CPU: moving is differentiable.
Tensors run_there(const Operator& entry, const Tensors& inputs) {
  return on_device(entry.run(on_device(inputs, gpu)), cpu);
}

/// All but the one that goes to another device by itself.
std::vector<Operator> operators() {
  std::vector<Operator> table = operator_table();
  std::erase_if(table, [](const Operator& entry) { return entry.name == "move"; });
  return table;
}

class CudaOperator : public ::testing::TestWithParam<Operator> {
 protected:
  const Operator& entry() const { return GetParam(); }
  std::string where(const OperatorCase& example) const { return entry().name + ", " + example.label; }
};

TEST_P(CudaOperator, HasTheGradientThatDifferencesGive) {
  for (const OperatorCase& example : entry().cases) {
    const GradcheckReport report = gradcheck([&](const Tensors& in) { return run_there(entry(), in); },
                                             leaves_of(example.inputs), entry().gradcheck);
    EXPECT_TRUE(report) << where(example);
  }
}

TEST_P(CudaOperator, GivesWhatTheCpuGivesInEveryFloatingDtype) {
  const struct {
    DType dtype;
    double epsilon;
  } types[] = {{DType::f64, 1e-15}, {DType::f32, 6e-8}, {DType::f16, 4.9e-4}, {DType::bf16, 3.9e-3}};
  for (const OperatorCase& example : entry().cases)
    for (const auto& [dtype, epsilon] : types) {
      const Tensors inputs = converted(example.inputs, dtype);
      const Results found = run(entry(), on_device(inputs, gpu)), expected = run(entry(), inputs);
      const double allowed = 4.0 * epsilon * entry().rounding;
      ASSERT_EQ(found.outputs.size(), expected.outputs.size()) << where(example);
      for (const auto part : {&Results::outputs, &Results::gradients}) {
        const double scale = allowed * scale_of(expected.*part);
        for (std::size_t i = 0; i < (expected.*part).size(); ++i) {
          EXPECT_EQ((found.*part)[i].device(), gpu) << where(example);
          EXPECT_LE(max_difference(to((found.*part)[i], cpu), (expected.*part)[i]), scale)
              << where(example) << ", " << to_string(dtype) << ", tensor " << i;
        }
      }
    }
}

TEST_P(CudaOperator, AsksThePoolForWhatASimulatedDeviceAsksForInTheSameOrder) {
  for (const OperatorCase& example : entry().cases) {
    const auto hash_on = [&](Device device) {
      const Tensors inputs = on_device(example.inputs, device);
      CachingAllocator& pool = allocator_for(device);
      pool.reset_sequence_hash();
      const Tensors leaves = leaves_of(inputs), outputs = entry().run(leaves);
      Tensors wanted, roots, seeds;
      for (const Tensor& leaf : leaves)
        if (leaf.requires_grad()) wanted.push_back(leaf);
      for (const Tensor& output : outputs)
        if (output.requires_grad()) roots.push_back(output), seeds.push_back(ones_like(output));
      grad(roots, wanted, seeds, {}, /*allow_unused=*/true);
      return pool.sequence_hash();
    };
    EXPECT_EQ(hash_on(gpu), hash_on(Device{DeviceType::sim, 0})) << where(example);
  }
}

std::string name_of_entry(const ::testing::TestParamInfo<Operator>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Table, CudaOperator, ::testing::ValuesIn(operators()), name_of_entry);

}  // namespace
}  // namespace poolgrad::testing
