// Tests generated from the operator table: one body each, run for every operator and every case.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/autograd/operator_run.h"
#include "tests/tensor/support.h"

namespace poolgrad::testing {
namespace {

/// Takes all that is saved out of the pool; what comes back is in fresh memory.
class Evacuation : public SavedTensorPolicy {
 public:
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse&) override {
    return std::make_unique<Elsewhere>(tensor);
  }

 private:
  class Elsewhere : public PackedTensor {
   public:
    explicit Elsewhere(const Tensor& tensor)
        : shape_(tensor.shape()), dtype_(tensor.dtype()), values_(tensor.to_vector<double>()) {}
    Tensor unpack() override { return to(from_data(values_, shape_), dtype_); }

   private:
    Shape shape_;
    DType dtype_;
    std::vector<double> values_;
  };
};

std::uint64_t live_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }

/// What the storages of `tensors` take that are not among those of `others`.
std::uint64_t bytes_apart(const Tensors& tensors, const Tensors& others) {
  std::set<const Storage*> counted;
  for (const Tensor& other : others) counted.insert(other.storage().get());
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors)
    if (counted.insert(tensor.storage().get()).second) bytes += tensor.storage()->bytes();
  return bytes;
}

class OperatorTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Operator& entry() const { return operator_table()[GetParam()]; }
  std::string where(const OperatorCase& example) const { return entry().name + ", " + example.label; }
};

TEST_P(OperatorTest, HasTheGradientThatDifferencesGive) {
  for (const OperatorCase& example : entry().cases) {
    const GradcheckReport report = gradcheck(entry().run, leaves_of(example.inputs), entry().gradcheck);
    EXPECT_TRUE(report) << where(example);
  }
}

TEST_P(OperatorTest, HasTheSecondDerivativeThatDifferencesGiveOrRefusesIt) {
  for (const OperatorCase& example : entry().cases) {
    if (!entry().no_second_derivative.empty()) {
      EXPECT_THAT(
          testing_support::error_of<poolgrad::Error>([&] { gradgradcheck(entry().run, leaves_of(example.inputs)); }),
          ::testing::HasSubstr(entry().no_second_derivative));
      continue;
    }
    const GradcheckReport report = gradgradcheck(entry().run, leaves_of(example.inputs), entry().gradcheck);
    EXPECT_TRUE(report) << where(example);
  }
}

TEST_P(OperatorTest, KeepsNothingThatAPolicyCannotTake) {
  for (const OperatorCase& example : entry().cases) {
    const Results expected = run(entry(), example.inputs);  // also makes what programs are kept for the next call
    const Evacuation policy;
    const Tensors leaves = leaves_of(example.inputs);
    const std::uint64_t before = live_bytes();
    const Tensors outputs = entry().run(leaves);
    EXPECT_EQ(live_bytes() - before, bytes_apart(outputs, leaves)) << where(example);
    const Results found = run(entry(), example.inputs);
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

/// Views, and what takes too long or too many to be done again.
const std::set<std::string> operations_without_recipe{
    "diagonal", "unfold", "reshape",      "transpose",     "permute",     "slice",           "select",
    "expand",   "split",  "split_heads",  "cross_entropy", "ring_attend", "ring_attend_all", "linear_cross_entropy",
    "leaf",     "tiles",  "joined_tiles", "checkpoint"};

TEST_P(OperatorTest, IsComputedAgainByItsRecipeBitForBit) {
  for (const OperatorCase& example : entry().cases)
    for (const DType dtype : {DType::f64, DType::bf16}) {
      if (dtype == DType::bf16 && !entry().no_numbers.empty()) continue;
      SCOPED_TRACE(where(example) + ", " + std::string(to_string(dtype)));
      const RecipeFollower policy;
      entry().run(leaves_of(converted(example.inputs, dtype)));
      for (const std::string& operation : policy.without())
        EXPECT_TRUE(operations_without_recipe.contains(operation)) << operation << " has no recipe";
    }
}

/// Another order in memory, the same numbers.
Tensor backwards_in_memory(const Tensor& x) {
  if (x.rank() < 2) return x;
  const Tensor swapped = transpose(x, 0, -1).copy();
  return transpose(swapped, 0, -1);
}

/// Every second place of a wider memory.
Tensor with_gaps(const Tensor& x) {
  if (x.rank() == 0) return x;
  Shape wide = x.shape();
  wide[x.rank() - 1] *= 2;
  Tensor view = slice(Tensor::empty(wide, x.options()).fill(3.0), -1, 1, std::numeric_limits<std::int64_t>::max(), 2);
  return view.copy_from(x);
}

TEST_P(OperatorTest, DoesNotCareHowItsInputsLieInMemory) {
  for (const OperatorCase& example : entry().cases) {
    const Results expected = run(entry(), example.inputs);
    for (const auto layout : {backwards_in_memory, with_gaps}) {
      Tensors inputs;
      for (const Tensor& input : example.inputs) inputs.push_back(layout(input));
      const Results found = run(entry(), inputs);
      ASSERT_EQ(found.outputs.size(), expected.outputs.size());
      for (std::size_t i = 0; i < found.outputs.size(); ++i)
        EXPECT_TRUE(all_close(found.outputs[i], expected.outputs[i], 1e-12, 1e-12)) << where(example);
      for (std::size_t i = 0; i < found.gradients.size(); ++i)
        EXPECT_TRUE(all_close(found.gradients[i], expected.gradients[i], 1e-12, 1e-12)) << where(example);
    }
  }
}

TEST_P(OperatorTest, GivesInEveryFloatingDtypeWhatF64Gives) {
  const struct {
    DType dtype;
    double epsilon;
  } types[] = {{DType::f32, 6e-8}, {DType::f16, 4.9e-4}, {DType::bf16, 3.9e-3}};
  for (const OperatorCase& example : entry().cases)
    for (const auto& [dtype, epsilon] : types) {
      const Tensors rounded = converted(example.inputs, dtype);
      const Results found = run(entry(), rounded), expected = run(entry(), converted(rounded, DType::f64));
      const double allowed = 4.0 * epsilon * entry().rounding;
      const double of_outputs = allowed * scale_of(expected.outputs);
      const double of_gradients = allowed * scale_of(expected.gradients);
      for (std::size_t i = 0; i < found.outputs.size(); ++i)
        EXPECT_LE(max_difference(found.outputs[i], expected.outputs[i]), of_outputs)
            << where(example) << ", " << to_string(dtype) << ", output " << i;
      for (std::size_t i = 0; i < found.gradients.size(); ++i) {
        EXPECT_EQ(found.gradients[i].dtype(), dtype) << where(example);
        EXPECT_LE(max_difference(found.gradients[i], expected.gradients[i]), of_gradients)
            << where(example) << ", " << to_string(dtype) << ", gradient " << i;
      }
    }
}

/// What a device's pool was asked for while the operator ran forwards and backwards, and the shapes that came out.
struct Trace {
  std::uint64_t sequence = 0;                         // hash of all requests and frees
  std::array<std::uint64_t, category_count> bytes;    // asked for, by category
  std::array<std::uint64_t, category_count> at_most;  // alive at one time
  std::vector<std::string> results;
};

Trace traced(const Operator& entry, const Tensors& inputs, Device device) {
  Tensors moved;
  for (const Tensor& input : inputs) moved.push_back(to(input, device));
  CachingAllocator& pool = allocator_for(device);
  pool.reset_peaks();
  pool.reset_sequence_hash();
  const auto before = pool.statistics().category_bytes;
  const Results results = run(entry, moved);
  Trace trace{.sequence = pool.sequence_hash(), .bytes = {}, .at_most = {}, .results = {}};
  const auto after = pool.statistics().category_bytes;
  for (std::size_t i = 0; i < category_count; ++i) {
    trace.bytes[i] = after[i].allocated - before[i].allocated;
    trace.at_most[i] = after[i].peak - before[i].current;
  }
  for (const Tensors& tensors : {results.outputs, results.gradients})
    for (const Tensor& tensor : tensors)
      trace.results.push_back(to_string(tensor.shape()) + " " + std::string(to_string(tensor.dtype())));
  return trace;
}

TEST_P(OperatorTest, AsksASimulatedDeviceForTheSameMemoryInTheSameOrder) {
  constexpr auto workspace = static_cast<std::size_t>(Category::workspace);
  constexpr Device like_cpu{DeviceType::sim, 100};
  configure_simulated_device(like_cpu.index, std::size_t{64} << 30, "cpu");
  for (const OperatorCase& example : entry().cases) {
    Trace real = traced(entry(), example.inputs, cpu);
    Trace simulated = traced(entry(), example.inputs, like_cpu);
    EXPECT_EQ(simulated.results, real.results) << where(example);
    if (simulated.bytes[workspace] == real.bytes[workspace]) {
      EXPECT_EQ(simulated.sequence, real.sequence) << where(example);
    } else {  // the CPU's matrix products and attention have scratch of their own, by thread
      EXPECT_LT(simulated.bytes[workspace], real.bytes[workspace]) << where(example);
      real.bytes[workspace] = simulated.bytes[workspace] = real.at_most[workspace] = simulated.at_most[workspace] = 0;
    }
    EXPECT_EQ(simulated.bytes, real.bytes) << where(example);
    EXPECT_EQ(simulated.at_most, real.at_most) << where(example);
  }
}

/// The names of all nodes from which `outputs` came.
std::set<std::string> names_behind(const Tensors& outputs) {
  std::set<std::string> names;
  std::set<const Node*> seen;
  std::vector<std::shared_ptr<Node>> open;
  for (const Tensor& output : outputs)
    if (output.defined() && output.requires_grad()) open.push_back(gradient_edge(output).node);
  while (!open.empty()) {
    const std::shared_ptr<Node> node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node.get()).second) continue;
    names.insert(node->name());
    for (const Edge& edge : node->edges()) open.push_back(edge.node);
  }
  return names;
}

class OperatorNamesTest : public OperatorTest {};

TEST_P(OperatorNamesTest, PutsTheNamesItClaimsOnTheTape) {
  std::set<std::string> found;
  for (const OperatorCase& example : entry().cases) {
    const Tensors leaves = leaves_of(example.inputs), outputs = entry().run(leaves);
    found.merge(names_behind(outputs));
    if (!entry().no_second_derivative.empty()) continue;
    Tensors wanted, roots, seeds;
    for (const Tensor& leaf : leaves)
      if (leaf.requires_grad()) wanted.push_back(leaf);
    for (const Tensor& output : outputs) {
      roots.push_back(output);
      seeds.push_back(weights_like(output).set_requires_grad());
    }
    found.merge(names_behind(grad(roots, wanted, seeds, {.create_graph = true}, /*allow_unused=*/true)));
  }
  EXPECT_TRUE(std::includes(found.begin(), found.end(), entry().records.begin(), entry().records.end()))
      << entry().name << " records " << ::testing::PrintToString(found) << ", claims "
      << ::testing::PrintToString(entry().records);
}

std::string test_name(const ::testing::TestParamInfo<std::size_t>& info) {
  std::string name = operator_table()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

/// The entries whose results can be compared: all but those that end on a device without numbers.
std::vector<std::size_t> entries_with_numbers() {
  std::vector<std::size_t> entries;
  for (std::size_t i = 0; i < operator_table().size(); ++i)
    if (operator_table()[i].no_numbers.empty()) entries.push_back(i);
  return entries;
}

INSTANTIATE_TEST_SUITE_P(Table, OperatorTest, ::testing::ValuesIn(entries_with_numbers()), test_name);
INSTANTIATE_TEST_SUITE_P(Table, OperatorNamesTest, ::testing::Range<std::size_t>(0, operator_table().size()),
                         test_name);

const std::vector<std::string> floors = {POOLGRAD_SOURCE_DIR "/autograd", POOLGRAD_SOURCE_DIR "/nn",
                                         POOLGRAD_SOURCE_DIR "/attention"};

TEST(OperatorTable, HasEveryOperatorThatTheSourcesRecord) {
  EXPECT_EQ(missing_from(operator_table(), recorded_names(floors)), std::set<std::string>{});
}

TEST(OperatorTable, ClaimsNothingThatTheSourcesDoNotRecord) {
  EXPECT_EQ(unknown_in(operator_table(), recorded_names(floors)), std::set<std::string>{});
}

TEST(OperatorTable, NoticesWhenAnOperatorIsTakenOut) {
  std::vector<Operator> table = operator_table();
  std::erase_if(table, [](const Operator& entry) { return entry.records.contains("rope"); });
  EXPECT_EQ(missing_from(table, recorded_names(floors)), std::set<std::string>{"rope"});
}

TEST(OperatorTable, NoticesAnOperatorThatIsGone) {
  std::vector<Operator> table = operator_table();
  table[0].records.insert("transmogrify");
  EXPECT_EQ(unknown_in(table, recorded_names(floors)), std::set<std::string>{"transmogrify"});
}

TEST(OperatorTable, NamesEveryOperatorOnce) {
  std::set<std::string> names;
  for (const Operator& entry : operator_table()) EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
}

}  // namespace
}  // namespace poolgrad::testing
