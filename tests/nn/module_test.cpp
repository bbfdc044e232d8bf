#include "nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/operators/reductions.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;

/// Two layers, one of them sharing its weight under a second name.
class Pair : public Module {
 public:
  explicit Pair(std::uint64_t seed, DType dtype = DType::f32)
      : generator_(seed),
        first(3, 2, {}, {.dtype = dtype, .generator = &generator_}),
        second(2, 2, {.bias = false}, {.dtype = dtype, .generator = &generator_}),
        dropout(0.5, generator_) {
    add_module("first", first);
    add_module("second", second);
    add_module("dropout", dropout);
    share_parameter("tied", second.weight());
  }

 private:
  Generator generator_;

 public:
  Linear first, second;
  Dropout dropout;
};

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : tensors) result.push_back(name);
  return result;
}

TEST(Module, NamesParametersByTheirPathAndCountsASharedOneOnce) {
  const Pair pair(1);
  EXPECT_THAT(names(pair.named_parameters()), ElementsAre("tied", "first.weight", "first.bias"));
  EXPECT_EQ(pair.parameter_count(), 4 + 6 + 2);
  for (const Tensor& parameter : pair.parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(Module, RefusesANameThatIsTakenOrIsNoStepOfAPath) {
  struct Named : Module {
    Linear layer{2, 2};
    void part(const std::string& name) { add_module(name, layer); }
    void own(const std::string& name) { share_parameter(name, layer.weight()); }
  } module;
  module.part("a");
  module.own("b");
  const std::string taken = "[module] a parameter or a submodule is called '";
  EXPECT_EQ(error_of<ValueError>([&] { module.part("a"); }), taken + "a' already");
  EXPECT_EQ(error_of<ValueError>([&] { module.own("b"); }), taken + "b' already");
  EXPECT_EQ(error_of<ValueError>([&] { module.own("a"); }), taken + "a' already");
  EXPECT_THAT(error_of<ValueError>([&] { module.part("c.d"); }),
              HasSubstr("which separates the names of a path: 'c.d'"));
  EXPECT_THAT(error_of<ValueError>([&] { module.part(""); }), HasSubstr("must not be empty"));
  EXPECT_THAT(names(module.named_parameters()), ElementsAre("b", "a.bias"));
}

TEST(Module, IsDecidedByItsGenerator) {
  const Pair a(1), b(1), c(2);
  EXPECT_TRUE(bit_equal(a.first.weight(), b.first.weight()));
  EXPECT_FALSE(bit_equal(a.first.weight(), c.first.weight()));
}

TEST(Module, TagsItsParameters) {
  const auto before = allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::parameter)];
  const Pair pair(1);
  const auto after = allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::parameter)];
  EXPECT_EQ(after.current - before.current, 12u * sizeof(float));
}

TEST(Module, SavesAndLoadsEveryParameter) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  const Pair saved(1);
  Pair loaded(2);
  saved.save_file(path);
  loaded.load_file(path);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(bit_equal(saved.parameters()[i], loaded.parameters()[i])) << saved.named_parameters()[i].first;
  EXPECT_TRUE(loaded.first.weight().requires_grad());
}

TEST(Module, RefusesAStateThatDoesNotFitAndStaysAsItWas) {
  Pair pair(1);
  const Tensor before = pair.first.weight().copy();
  NamedTensors state = Pair(2).named_parameters();
  state[0].second = zeros({2, 3});
  state[2].first = "third.bias";
  EXPECT_EQ(error_of<ValueError>([&] { pair.load(state); }),
            "[load] the state does not fit the module: tied is (2, 3) f32 on cpu where the module has (2, 2) f32 on "
            "cpu; missing first.bias; unexpected third.bias");
  EXPECT_TRUE(bit_equal(pair.first.weight(), before));
  EXPECT_THAT(error_of<ValueError>([&] { pair.load(Pair(1, DType::f64).named_parameters()); }),
              HasSubstr("first.weight is (2, 3) f64 on cpu where the module has (2, 3) f32 on cpu"));
}

TEST(Module, ZeroGradGivesTheMemoryOfGradientsBack) {
  Pair pair(1);
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const auto before = live();
  sum(pair.first(ones({4, 3}))).backward();
  EXPECT_TRUE(pair.first.weight().grad().defined());
  EXPECT_GT(live(), before);
  pair.zero_grad();
  EXPECT_FALSE(pair.first.weight().grad().defined());
  EXPECT_EQ(live(), before);
}

TEST(Module, SwitchesItsSubmodulesBetweenTrainingAndEvaluation) {
  Pair pair(1);
  EXPECT_TRUE(pair.training() && pair.dropout.training());
  pair.eval();
  EXPECT_FALSE(pair.training() || pair.dropout.training());
  pair.train();
  EXPECT_TRUE(pair.dropout.training());
}

}  // namespace
}  // namespace poolgrad::nn
