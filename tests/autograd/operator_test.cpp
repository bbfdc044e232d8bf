// The suite of the operator table on the CPU, and tests of the table itself. Sim devices must match the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/record.h"
#include "autograd/operators.h"
#include "tests/autograd/operator_suite.h"

namespace poolgrad::testing {

constexpr Suite suite{.device = cpu, .all_cases = true};

namespace {

/// Requests to a device's pool while the operator ran forward and backward, and the shapes of the results.
struct Trace {
  std::uint64_t sequence = 0;                         // hash of all requests and frees
  std::array<std::uint64_t, category_count> bytes;    // requested, by category
  std::array<std::uint64_t, category_count> at_most;  // peak of live bytes, by category
  std::vector<std::string> results;
};

Trace traced(const Operator& entry, const Tensors& inputs, Device device) {
  const Tensors moved = on_device(inputs, device);
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

TEST_P(OperatorTest, MatchesTheRequestSequenceOnASimulatedDevice) {
  constexpr auto workspace = static_cast<std::size_t>(Category::workspace);
  constexpr Device like_cpu{DeviceType::sim, 100};
  configure_simulated_device(like_cpu.index, std::size_t{64} << 30, "cpu");
  for (const OperatorCase& example : entry().cases) {
    Trace real = traced(entry(), example.inputs, cpu);
    Trace simulated = traced(entry(), example.inputs, like_cpu);
    EXPECT_EQ(simulated.results, real.results) << where(example);
    if (simulated.bytes[workspace] == real.bytes[workspace]) {
      EXPECT_EQ(simulated.sequence, real.sequence) << where(example);
    } else {  // matrix products and attention on the CPU have scratch for each thread
      EXPECT_LT(simulated.bytes[workspace], real.bytes[workspace]) << where(example);
      real.bytes[workspace] = simulated.bytes[workspace] = real.at_most[workspace] = simulated.at_most[workspace] = 0;
    }
    EXPECT_EQ(simulated.bytes, real.bytes) << where(example);
    EXPECT_EQ(simulated.at_most, real.at_most) << where(example);
  }
}

/// The names of all nodes behind `outputs`.
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

TEST_P(OperatorNamesTest, RecordsItsClaimedNames) {
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

INSTANTIATE_TEST_SUITE_P(Table, OperatorTest, ::testing::ValuesIn(entries_with_numbers()), name_of_entry);
INSTANTIATE_TEST_SUITE_P(Table, OperatorNamesTest, ::testing::Range<std::size_t>(0, operator_table().size()),
                         name_of_entry);

const std::vector<std::string> floors = {POOLGRAD_SOURCE_DIR "/autograd", POOLGRAD_SOURCE_DIR "/nn",
                                         POOLGRAD_SOURCE_DIR "/attention"};

TEST(OperatorTable, HasEveryOperatorOfTheSources) {
  EXPECT_EQ(missing_from(operator_table(), recorded_names(floors)), std::set<std::string>{});
}

TEST(OperatorTable, ClaimsNoOperatorAbsentFromTheSources) {
  EXPECT_EQ(unknown_in(operator_table(), recorded_names(floors)), std::set<std::string>{});
}

TEST(OperatorTable, DetectsAMissingOperator) {
  std::vector<Operator> table = operator_table();
  std::erase_if(table, [](const Operator& entry) { return entry.records.contains("rope"); });
  EXPECT_EQ(missing_from(table, recorded_names(floors)), std::set<std::string>{"rope"});
}

TEST(OperatorTable, DetectsAnUnknownOperator) {
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
