// The suite of the operator table on cuda:0, a GPU or the emulated device, and a check that it covers all operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "allocator/caching_allocator.h"
#include "tests/autograd/operator_suite.h"
#include "tests/effort.h"
#include "tests/emulation/order.h"

namespace poolgrad::testing {

constexpr Device gpu{DeviceType::cuda, 0};
const Suite suite{.device = gpu, .all_cases = !is_brief()};

namespace {

TEST_P(OperatorTest, MatchesTheRequestSequenceOfASimulatedDevice) {
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

INSTANTIATE_TEST_SUITE_P(Cuda, OperatorTest, ::testing::ValuesIn(entries_with_numbers()), name_of_entry);

TEST(OperatorSuite, HasEveryOperatorExceptMove) {
  std::set<std::string> left_out;
  for (const Operator& entry : operator_table()) left_out.insert(entry.name);
  std::size_t cases = 0;
  for (const std::size_t i : entries_with_numbers()) {
    left_out.erase(operator_table()[i].name);
    cases += operator_table()[i].cases.size();
  }
  EXPECT_EQ(left_out, std::set<std::string>{"move"}) << "its result is on sim:1, which has no numbers";
  const auto dtypes = std::size_t{4};
  std::printf("%zu operators of %zu, %zu cases, in %zu dtypes: %zu\n", entries_with_numbers().size(),
              operator_table().size(), cases, dtypes, cases * dtypes);
  RecordProperty("operators", static_cast<int>(entries_with_numbers().size()));
  RecordProperty("cases_times_dtypes", static_cast<int>(cases * dtypes));
}

TEST(OperatorSuite, RunsEveryBodyForEveryOperator) {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::map<std::string, std::set<std::string>> operators_of_body;
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& tests = *all.GetTestSuite(s);
    if (std::string(tests.name()) != "Cuda/OperatorTest") continue;
    for (int t = 0; t < tests.total_test_count(); ++t) {
      const std::string name = tests.GetTestInfo(t)->name();
      operators_of_body[name.substr(0, name.find('/'))].insert(name.substr(name.find('/') + 1));
    }
  }
  EXPECT_EQ(operators_of_body.size(), 7u);
  for (const auto& [body, operators] : operators_of_body)
    EXPECT_EQ(operators.size(), entries_with_numbers().size()) << body;
}

}  // namespace
}  // namespace poolgrad::testing
