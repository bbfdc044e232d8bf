// Autocast: the compute dtype of every operator in the operator table, and the lifetime of the casts that a scope
// keeps.
#include "autograd/autocast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/record.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/autograd/operator_run.h"
#include "tests/autograd/operator_suite.h"
#include "tests/tensor/support.h"

namespace poolgrad::testing {
namespace {

using testing_support::error_of;

/// Checks that the operands of each operator, after casts, have the dtypes of its class in a bf16 scope.
class ClassWatcher : public SavedTensorPolicy {
 public:
  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    const bool attends = call.operation.find("attend") != std::string::npos || call.operation == "gated_delta_rule";
    const std::size_t checked = attends ? 3 : call.inputs.size();  // the others are f32: bias, sinks, gates, states
    std::set<DType> dtypes;
    for (std::size_t i = 0; i < checked; ++i)
      if (call.inputs[i].defined() && is_floating(call.inputs[i].dtype())) dtypes.insert(call.inputs[i].dtype());
    ++calls_;
    switch (autocast_class(call.operation)) {
      case AutocastClass::low:
        if (call.operation == "linear_cross_entropy") break;  // casts inside; gradients have the inputs' dtypes
        EXPECT_EQ(dtypes, std::set<DType>{DType::bf16}) << call.operation;
        break;
      case AutocastClass::wide: EXPECT_EQ(dtypes, std::set<DType>{DType::f32}) << call.operation; break;
      case AutocastClass::widest: EXPECT_EQ(dtypes.size(), 1u) << call.operation; break;
      case AutocastClass::as_given: break;
    }
    return nullptr;
  }
  std::unique_ptr<PackedTensor> pack(const Tensor&, const SavedUse&) override { return nullptr; }
  int calls() const { return calls_; }

 private:
  int calls_ = 0;
};

class AutocastTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Operator& entry() const { return operator_table()[GetParam()]; }
};

/// Casts the floating inputs to these dtypes in turn.
Tensors in_turn(const Tensors& inputs, std::array<DType, 2> dtypes) {
  Tensors result;
  std::size_t next = 0;
  for (const Tensor& input : inputs)
    result.push_back(is_floating(input.dtype()) ? to(input, dtypes[next++ % 2]) : input);
  return result;
}

TEST_P(AutocastTest, ComputesInTheDtypeOfItsClassForAnyInputDtype) {
  constexpr double epsilon = 3.9e-3;
  for (const OperatorCase& example : entry().cases)
    for (const std::array<DType, 2> dtypes : {std::array{DType::f32, DType::f32},
                                              {DType::bf16, DType::bf16},
                                              {DType::f32, DType::bf16},
                                              {DType::bf16, DType::f32}}) {
      SCOPED_TRACE(entry().name + ", " + example.label + ", " + std::string(to_string(dtypes[0])) + " and " +
                   std::string(to_string(dtypes[1])));
      const Tensors exact = converted(example.inputs, DType::bf16), inputs = in_turn(exact, dtypes);
      const Results expected = run(entry(), converted(exact, DType::f64));
      const ClassWatcher watcher;
      const AutocastScope scope(DType::bf16);
      const Results found = run(entry(), inputs);
      EXPECT_GT(watcher.calls(), 0);
      const double allowed = 4.0 * epsilon * entry().rounding;
      for (std::size_t i = 0; i < found.outputs.size(); ++i)
        EXPECT_LE(max_difference(found.outputs[i], expected.outputs[i]), allowed * scale_of(expected.outputs))
            << "output " << i;
      std::vector<DType> floating;
      for (const Tensor& input : inputs)
        if (is_floating(input.dtype())) floating.push_back(input.dtype());
      ASSERT_EQ(found.gradients.size(), floating.size());
      for (std::size_t i = 0; i < floating.size(); ++i) {
        EXPECT_EQ(found.gradients[i].dtype(), floating[i]) << "gradient " << i;
        EXPECT_LE(max_difference(found.gradients[i], expected.gradients[i]), allowed * scale_of(expected.gradients))
            << "gradient " << i;
      }
    }
}

TEST_P(AutocastTest, LeavesF64Alone) {
  for (const OperatorCase& example : entry().cases) {
    const Results expected = run(entry(), example.inputs);
    const AutocastScope scope(DType::f16);
    const Results found = run(entry(), example.inputs);
    for (std::size_t i = 0; i < found.outputs.size(); ++i)
      EXPECT_TRUE(bit_equal(found.outputs[i], expected.outputs[i])) << entry().name << ", output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, AutocastTest, ::testing::ValuesIn(entries_with_numbers()), name_of_entry);

const std::set<std::string>& all_recorded() {
  static const std::set<std::string> names =
      recorded_names({POOLGRAD_SOURCE_DIR "/autograd", POOLGRAD_SOURCE_DIR "/nn", POOLGRAD_SOURCE_DIR "/attention"});
  return names;
}

TEST(AutocastTable, HasAClassForEveryOperatorInTheSources) {
  for (const std::string& name : all_recorded()) EXPECT_NO_THROW(autocast_class(name)) << name;
  EXPECT_EQ(error_of<ValueError>([] { autocast_class("transmogrify"); }),
            "[autocast] no autocast class for the operator transmogrify");
}

/// The names in the last cell of a row of docs/reference/nn.md: | `low` | effect on operands | `matmul`, `linear` |
std::set<std::string> operators_in_row(const std::string& class_name) {
  std::ifstream page(POOLGRAD_SOURCE_DIR "/docs/reference/nn.md");
  std::string line;
  while (std::getline(page, line) && !line.starts_with("| `" + class_name + "` |")) {
  }
  std::set<std::string> names;
  const std::regex quoted("`(\\w+)`");
  const std::string cell = line.substr(std::min(line.size(), line.rfind(" | ")));
  for (std::sregex_iterator name(cell.begin(), cell.end(), quoted), end; name != end; ++name) names.insert((*name)[1]);
  return names;
}

TEST(AutocastTable, MatchesThePage) {
  const std::pair<const char*, AutocastClass> rows[] = {{"low", AutocastClass::low},
                                                        {"wide", AutocastClass::wide},
                                                        {"widest", AutocastClass::widest},
                                                        {"as_given", AutocastClass::as_given}};
  for (const auto& [name, kind] : rows) {
    const std::set<std::string> said = operators_in_row(name);
    EXPECT_FALSE(said.empty()) << name;
    for (const std::string& op : said) EXPECT_EQ(autocast_class(op), kind) << op << " is not " << name;
    if (kind == AutocastClass::as_given) continue;  // the page names few of them
    for (const std::string& op : all_recorded())
      EXPECT_TRUE(autocast_class(op) != kind || said.contains(op)) << op << " is missing in the row of " << name;
  }
}

Tensor leaf(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return randn(shape, {}, generator).set_requires_grad();
}

TEST(AutocastScope, UsesTheInnermostScopeOfItsThread) {
  const Tensor a = leaf({4, 4}, 1);
  const auto dtype = [&] { return matmul(a, a).dtype(); };
  {
    const AutocastScope outer(DType::bf16);
    EXPECT_EQ(dtype(), DType::bf16);
    {
      const AutocastScope inner(DType::f16);
      EXPECT_EQ(dtype(), DType::f16);
      const AutocastScope off(autocast_off);
      EXPECT_EQ(dtype(), DType::f32);
    }
    EXPECT_EQ(dtype(), DType::bf16);
    std::thread([&] { EXPECT_EQ(dtype(), DType::f32); }).join();
  }
  EXPECT_EQ(dtype(), DType::f32);
}

TEST(AutocastScope, RejectsATypeOtherThanHalfAndChangesNothing) {
  for (const DType dtype : {DType::f32, DType::f64, DType::i64})
    EXPECT_EQ(error_of<DTypeError>([&] { AutocastScope scope(dtype); }),
              "[autocast] products can be cast to f16 or bf16, not to " + std::string(to_string(dtype)));
  EXPECT_EQ(AutocastScope::current(), std::nullopt);
}

TEST(AutocastScope, ReturnsTheWidestTypeOfMixedOperands) {
  const Tensor wide = ones({2}), low = to(wide, DType::bf16), other = to(wide, DType::f16);
  EXPECT_EQ(error_of<DTypeError>([&] { add(wide, low); }).substr(0, 5), "[add]");
  const AutocastScope scope(DType::bf16);
  EXPECT_EQ(add(wide, low).dtype(), DType::f32);
  EXPECT_EQ(add(low, other).dtype(), DType::f32);
  EXPECT_EQ(add(low, low).dtype(), DType::bf16);
  EXPECT_EQ(cat({low, wide}).dtype(), DType::f32);
  EXPECT_EQ(less(low, wide).dtype(), DType::boolean);
  EXPECT_EQ(where(less(low, wide), low, low).dtype(), DType::bf16);
}

TEST(AutocastScope, ReportsMismatchesAsOperatorsDo) {
  const AutocastScope scope(DType::bf16);
  EXPECT_EQ(error_of<ShapeError>([] {
              matmul(ones({2, 3}), ones({2, 3}));
            }),
            "[matmul] inner dimensions differ: lhs (2, 3) bf16 on cpu, rhs (2, 3) bf16 on cpu");
  EXPECT_THAT(error_of<DTypeError>([] { add(ones({2}), ones({2}, {.dtype = DType::f64})); }),
              ::testing::HasSubstr("operands differ in dtype"));
}

/// Records the storages of cast results.
class CastLog : public SavedTensorPolicy {
 public:
  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override {
    if (call.operation == "cast") storages.push_back(call.outputs[0].storage());
    return nullptr;
  }
  std::unique_ptr<PackedTensor> pack(const Tensor&, const SavedUse&) override { return nullptr; }

  std::vector<std::weak_ptr<Storage>> storages;
};

TEST(AutocastScope, CachesTheCastOfAParameterUntilAWriteOrTheEndOfTheScope) {
  Tensor weight = leaf({8, 4}, 2);
  const Tensor x = to(ones({3, 4}), DType::bf16);
  CastLog log;
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const auto before = live();
  {
    const AutocastScope scope(DType::bf16);
    linear(x, weight);
    linear(x, weight);
    EXPECT_EQ(live() - before, 8u * 4 * 2) << "one cast is kept";
    ASSERT_EQ(log.storages.size(), 2u);
    EXPECT_EQ(log.storages[0].lock(), log.storages[1].lock());
    {
      const NoGradGuard no_grad;
      weight.fill(0.5);
    }
    EXPECT_EQ(linear(x, weight).to_vector<double>(), std::vector<double>(24, 2.0)) << "the new value counts";
    EXPECT_TRUE(log.storages[0].expired());
    EXPECT_EQ(live() - before, 8u * 4 * 2);
  }
  EXPECT_EQ(live(), before);
}

TEST(AutocastScope, CachesTheCastOfALayersFrozenParameter) {
  const Tensor weight = ones({8, 4}), x = to(ones({3, 4}), DType::bf16);
  const AutocastScope scope(DType::bf16);
  const Tensor first = parameter_for("linear", weight, x), second = parameter_for("linear", weight, x);
  EXPECT_EQ(first.dtype(), DType::bf16);
  EXPECT_EQ(first.storage(), second.storage());
  Tensor(weight).fill(2.0);
  EXPECT_EQ(sum(parameter_for("linear", weight, x)).item(), 64) << "the new value counts";
}

TEST(AutocastScope, CachesTheCastOfEachSliceOfAFrozenParameter) {
  const Tensor weight = from_data(std::vector<float>{1, 2, 3, 4}, {4, 1}), x = to(ones({3, 1}), DType::bf16);
  const AutocastScope scope(DType::bf16);
  const auto rows = [&](std::int64_t begin) { return parameter_for("linear", slice(weight, 0, begin, begin + 2), x); };
  const Tensor upper = rows(0), lower = rows(2);
  EXPECT_EQ(upper.to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ(lower.to_vector<float>(), (std::vector<float>{3, 4}));
  EXPECT_EQ(rows(0).storage(), upper.storage());
  EXPECT_EQ(rows(2).storage(), lower.storage());
}

TEST(AutocastScope, DoesNotReuseTheCastOfADestroyedParameter) {
  const Tensor x = to(ones({1, 64}), DType::bf16);
  const AutocastScope scope(DType::bf16);
  for (const double value : {1.0, 2.0, 3.0}) {
    const Tensor weight = full({1, 64}, value).set_requires_grad();  // usually at the address of the previous one
    EXPECT_EQ(linear(x, weight).item(), 64 * value);
  }
}

TEST(AutocastScope, RecordsGradientsAfterACastWithoutGradients) {
  const Tensor weight = leaf({4, 4}, 3);
  const AutocastScope scope(DType::bf16);
  {
    const NoGradGuard no_grad;
    matmul(weight, weight);
  }
  sum(matmul(weight, weight)).backward();
  EXPECT_EQ(weight.grad().dtype(), DType::f32);
}

TEST(AutocastScope, AccumulatesParameterGradientsInF32) {
  // bf16 cannot represent 1 + 2^-10: one use alone gives 1, the other 2^-10.
  const Tensor weight = zeros({1, 1}).set_requires_grad(), x = full({1, 1}, 1.0), y = full({1, 1}, 0x1p-10);
  {
    const AutocastScope scope(DType::bf16);
    (sum(linear(x, weight)) + sum(linear(y, weight))).backward();
  }
  EXPECT_EQ(weight.grad().item(), 1.0 + 0x1p-10);
}

TEST(AutocastScope, GivesTheSameBackwardBitsInsideAndOutside) {
  const auto gradients = [](bool inside) {
    const Tensor weight = leaf({16, 16}, 4), x = leaf({8, 16}, 5);
    std::optional<AutocastScope> scope(std::in_place, DType::f16);
    const Tensor loss = mean(square(softmax(linear(gelu(linear(x, weight)), weight)) * x));
    if (!inside) scope.reset();
    loss.backward();
    return Tensors{weight.grad(), x.grad()};
  };
  const Tensors in = gradients(true), out = gradients(false);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(in[i], out[i])) << i;
}

TEST(AutocastScope, IsRestoredWhenACheckpointRecomputes) {
  for (const bool inside : {false, true}) {
    const Tensor weight = leaf({16, 16}, 6), x = leaf({8, 16}, 7);
    const auto function = [&](const Tensor& in) { return in + linear(gelu(linear(in, weight)), weight); };
    const auto run = [&](const auto& call) {
      Tensor(weight).set_grad({}), Tensor(x).set_grad({});
      std::optional<AutocastScope> scope(std::in_place, DType::bf16);
      const Tensor loss = sum(call());
      if (!inside) scope.reset();
      loss.backward();
      return Tensors{loss.detach(), weight.grad(), x.grad()};
    };
    const Tensors kept = run([&] { return function(x); }), again = run([&] { return checkpoint(function, x); });
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(bit_equal(kept[i], again[i])) << i;
  }
}

TEST(AutocastScope, HasTheSecondDerivativesOfTheCast) {
  const Tensor a = leaf({3, 3}, 8);
  const auto of = [&](bool scoped) {
    const Tensor low = scoped ? a : to(a, DType::bf16);
    Tensor loss;
    {
      const AutocastScope scope(scoped ? std::optional(DType::bf16) : autocast_off);
      loss = sum(to(matmul(matmul(low, low), low), DType::f32));
    }
    const Tensor first = grad({loss}, {a}, {}, {.create_graph = true})[0];
    return grad({sum(square(first))}, {a})[0];
  };
  EXPECT_LT(relative_error(of(true), of(false)), 0.02);
}

TEST(LinearCrossEntropy, GivesAnF32WeightAnF32Gradient) {
  const Tensor x = to(leaf({64, 8}, 9).detach(), DType::f16).set_requires_grad(), weight = leaf({5, 8}, 10);
  Generator generator(11);
  const Tensor targets = randint(0, 5, {64}, {.dtype = DType::i64}, generator);
  linear_cross_entropy(x, weight, targets).backward();
  EXPECT_EQ(x.grad().dtype(), DType::f16);
  ASSERT_EQ(weight.grad().dtype(), DType::f32);
  const Tensor wide = to(x.detach(), DType::f64).set_requires_grad(),
               table = to(to(weight.detach(), DType::f16), DType::f64).set_requires_grad();
  linear_cross_entropy(wide, table, targets).backward();
  EXPECT_LT(relative_error(weight.grad(), table.grad()), 2e-3);
  EXPECT_LT(relative_error(x.grad(), wide.grad()), 2e-3);
  EXPECT_THAT(error_of<DTypeError>([&] { linear_cross_entropy(weight, x, targets); }),
              ::testing::HasSubstr("operands differ in dtype"));
}

TEST(LinearCrossEntropy, KeepsF16GradientsOfAMeanUnderLossScaling) {
  constexpr std::int64_t rows = 8192;
  const auto gradient = [&](DType dtype) {
    const Tensor x = to(leaf({rows, 4}, 12).detach(), dtype).set_requires_grad();
    Generator generator(13);
    const Tensor targets = randint(0, 3, {rows}, {.dtype = DType::i64}, generator);
    const Tensor weight = to(full({3, 4}, 0.01) * randn({3, 4}, {}, generator), dtype);
    (linear_cross_entropy(x, weight, targets) * 65536.0).backward();
    return to(x.grad(), DType::f64);
  };
  EXPECT_LT(relative_error(gradient(DType::f16), gradient(DType::f32)), 2e-3);
}

}  // namespace
}  // namespace poolgrad::testing
