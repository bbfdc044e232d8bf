// Properties of every operator on every device; see operator_suite.h.
#include "tests/autograd/operator_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "tensor/compare.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {

std::vector<OperatorCase> OperatorTest::some_cases() const {
  const std::vector<OperatorCase>& all = entry().cases;
  if (suite.all_cases) return all;
  const auto has_elements = [](const OperatorCase& example) {
    return std::ranges::all_of(example.inputs, [](const Tensor& input) { return input.numel() > 0; });
  };
  std::vector<OperatorCase> some;
  std::ranges::copy_if(all, std::back_inserter(some), has_elements);
  return {some.empty() ? all.front() : some[test_seed() % some.size()]};
}

std::vector<std::size_t> entries_with_numbers() {
  std::vector<std::size_t> entries;
  for (std::size_t i = 0; i < operator_table().size(); ++i)
    if (operator_table()[i].no_numbers.empty()) entries.push_back(i);
  return entries;
}

std::string name_of_entry(const ::testing::TestParamInfo<std::size_t>& info) {
  std::string name = operator_table()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

namespace {

/// Moves all saved tensors out of the pool, and unpacks them into new memory.
class Evacuation : public SavedTensorPolicy {
 public:
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse&) override {
    return std::make_unique<Elsewhere>(tensor);
  }

 private:
  class Elsewhere : public PackedTensor {
   public:
    explicit Elsewhere(const Tensor& tensor)
        : shape_(tensor.shape()), options_(tensor.options()), values_(tensor.to_vector<double>()) {}
    Tensor unpack() override { return to(to(from_data(values_, shape_), options_.dtype), options_.device); }

   private:
    Shape shape_;
    TensorOptions options_;
    std::vector<double> values_;
  };
};

std::uint64_t live_bytes() { return allocator_for(suite.device).statistics().requested_bytes.current; }

/// Bytes of the storages of `tensors` that are not storages of `others`.
std::uint64_t bytes_apart(const Tensors& tensors, const Tensors& others) {
  std::set<const Storage*> counted;
  for (const Tensor& other : others) counted.insert(other.storage().get());
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors)
    if (counted.insert(tensor.storage().get()).second) bytes += tensor.storage()->bytes();
  return bytes;
}

TEST_P(OperatorTest, PassesGradcheck) {
  for (const OperatorCase& example : entry().cases) {
    const GradcheckReport report = gradcheck(there_and_back(), leaves_of(example.inputs), checks_of(example));
    EXPECT_TRUE(report) << where(example);
  }
}

TEST_P(OperatorTest, PassesGradgradcheckOrRejectsIt) {
  for (const OperatorCase& example : some_cases()) {
    if (!entry().no_second_derivative.empty()) {
      EXPECT_THAT(testing_support::error_of<poolgrad::Error>(
                      [&] { gradgradcheck(there_and_back(), leaves_of(example.inputs)); }),
                  ::testing::HasSubstr(entry().no_second_derivative));
      continue;
    }
    const GradcheckReport report = gradgradcheck(there_and_back(), leaves_of(example.inputs), checks_of(example));
    EXPECT_TRUE(report) << where(example);
  }
}

TEST_P(OperatorTest, LetsAPolicyTakeEverySavedTensor) {
  for (const OperatorCase& example : some_cases()) {
    const Tensors inputs = on_device(example.inputs, suite.device);
    const Results expected = run(entry(), inputs);  // also fills the program caches
    const Evacuation policy;
    const Tensors leaves = leaves_of(inputs);
    const std::uint64_t before = live_bytes();
    const Tensors outputs = entry().run(leaves);
    EXPECT_EQ(live_bytes() - before, bytes_apart(outputs, leaves)) << where(example);
    const Results found = run(entry(), inputs);
    for (std::size_t i = 0; i < found.gradients.size(); ++i)
      EXPECT_TRUE(bit_equal(found.gradients[i], expected.gradients[i])) << where(example) << ", gradient " << i;
  }
}

/// Follows every recipe as soon as its operator has run.
class RecipeFollower : public SavedTensorPolicy {
 public:
  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    if (!call.recipe) {
      without_.insert(call.operation);
      return nullptr;
    }
    Tensors inputs;
    for (const Tensor& input : call.inputs) inputs.push_back(input.defined() ? input.detach() : input);
    const NoGradGuard guard;
    const Tensors again = call.recipe.compute(inputs);
    EXPECT_EQ(again.size(), call.outputs.size()) << call.operation;
    for (std::size_t i = 0; i < again.size(); ++i) {
      EXPECT_TRUE(bit_equal(again[i], call.outputs[i])) << call.operation << ", output " << i;
      EXPECT_FALSE(again[i].shares_storage_with(call.outputs[i])) << call.operation << ", output " << i;
    }
    return nullptr;
  }
  std::unique_ptr<PackedTensor> pack(const Tensor&, const SavedUse&) override { return nullptr; }

  const std::set<std::string>& without() const { return without_; }

 private:
  std::set<std::string> without_;
};

/// Views, and operators that run too long or need too many ranks to run again.
const std::set<std::string> operations_without_recipe{
    "diagonal", "unfold", "reshape",      "transpose",     "permute",     "slice",           "select",
    "expand",   "split",  "split_heads",  "cross_entropy", "ring_attend", "ring_attend_all", "linear_cross_entropy",
    "leaf",     "tiles",  "joined_tiles", "checkpoint"};

TEST_P(OperatorTest, IsRecomputedByItsRecipeBitForBit) {
  for (const OperatorCase& example : some_cases())
    for (const DType dtype : {DType::f64, DType::bf16}) {
      SCOPED_TRACE(where(example) + ", " + std::string(to_string(dtype)));
      const RecipeFollower policy;
      entry().run(leaves_of(on_device(converted(example.inputs, dtype), suite.device)));
      for (const std::string& operation : policy.without())
        EXPECT_TRUE(operations_without_recipe.contains(operation)) << operation << " has no recipe";
    }
}

/// The same numbers in another memory order.
Tensor backwards_in_memory(const Tensor& x) {
  if (x.dim() < 2) return x;
  const Tensor swapped = transpose(x, 0, -1).copy();
  return transpose(swapped, 0, -1);
}

/// Every second element of a wider tensor.
Tensor with_gaps(const Tensor& x) {
  if (x.dim() == 0) return x;
  Shape wide = x.shape();
  wide[x.dim() - 1] *= 2;
  Tensor view = slice(Tensor::empty(wide, x.options()).fill(1.0), -1, 1, std::numeric_limits<std::int64_t>::max(), 2);
  return view.copy_from(x);
}

TEST_P(OperatorTest, AcceptsInputsOfAnyLayout) {
  for (const OperatorCase& example : some_cases()) {
    const Tensors dense = on_device(example.inputs, suite.device);
    const Results expected = run(entry(), dense);
    for (const auto layout : {backwards_in_memory, with_gaps}) {
      Tensors inputs;
      for (const Tensor& input : dense) inputs.push_back(layout(input));
      const Results found = run(entry(), inputs);
      ASSERT_EQ(found.outputs.size(), expected.outputs.size());
      for (std::size_t i = 0; i < found.outputs.size(); ++i)
        EXPECT_TRUE(allclose(found.outputs[i], expected.outputs[i], 1e-12, 1e-12)) << where(example);
      for (std::size_t i = 0; i < found.gradients.size(); ++i)
        EXPECT_TRUE(allclose(found.gradients[i], expected.gradients[i], 1e-12, 1e-12)) << where(example);
    }
  }
}

TEST_P(OperatorTest, AgreesWithF64OnTheCpuInEveryFloatingDtype) {
  const struct {
    DType dtype;
    double epsilon;
  } types[] = {{DType::f64, 1e-15}, {DType::f32, 6e-8}, {DType::f16, 4.9e-4}, {DType::bf16, 3.9e-3}};
  for (const OperatorCase& example : entry().cases)
    for (const auto& [dtype, epsilon] : types) {
      SCOPED_TRACE(where(example) + ", " + std::string(to_string(dtype)));
      const Tensors rounded = converted(example.inputs, dtype);
      const Results found = run(entry(), on_device(rounded, suite.device)),
                    expected = run(entry(), converted(rounded, DType::f64));
      const double allowed = 4.0 * epsilon * entry().rounding;
      for (const auto part : {&Results::outputs, &Results::gradients}) {
        const double slack = allowed * scale_of(expected.*part);
        ASSERT_EQ((found.*part).size(), (expected.*part).size());
        for (std::size_t i = 0; i < (found.*part).size(); ++i) {
          const Tensor& tensor = (found.*part)[i];
          EXPECT_EQ(tensor.device(), suite.device);
          if (part == &Results::gradients) {
            EXPECT_EQ(tensor.dtype(), dtype);
          }
          EXPECT_LE(max_difference(to(tensor, cpu), (expected.*part)[i]), slack)
              << (part == &Results::outputs ? "output " : "gradient ") << i;
        }
      }
    }
}

}  // namespace
}  // namespace poolgrad::testing
