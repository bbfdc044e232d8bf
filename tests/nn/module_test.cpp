#include "nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
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

/// Two layers; one shares its weight under a second name.
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

TEST(Module, RefusesTakenAndInvalidNames) {
  struct Named : Module {
    Linear layer{2, 2};
    void part(const std::string& name) { add_module(name, layer); }
    void own(const std::string& name) { share_parameter(name, layer.weight()); }
    void nothing(const std::string& name) { share_parameter(name, Tensor()); }
  } module;
  module.part("a");
  module.own("b");
  const std::string taken = "[module] a parameter, a buffer or a submodule is called '";
  EXPECT_EQ(error_of<ValueError>([&] { module.part("a"); }), taken + "a' already");
  EXPECT_EQ(error_of<ValueError>([&] { module.own("b"); }), taken + "b' already");
  EXPECT_EQ(error_of<ValueError>([&] { module.own("a"); }), taken + "a' already");
  EXPECT_EQ(error_of<ValueError>([&] { module.nothing("d"); }), "[module] the parameter 'd' is undefined");
  EXPECT_THAT(error_of<ValueError>([&] { module.part("c.d"); }),
              HasSubstr("which separates the names of a path: 'c.d'"));
  EXPECT_THAT(error_of<ValueError>([&] { module.part(""); }), HasSubstr("must not be empty"));
  EXPECT_THAT(names(module.named_parameters()), ElementsAre("b", "a.bias"));
}

TEST(Module, DependsOnlyOnItsGenerator) {
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

TEST(Module, DoesNotSaveAFileWithoutTensors) {
  struct Forgetful : Module {
    Linear linear{2, 2};  // without add_module()
  } forgetful;
  struct Parent : Module {
    Forgetful inner;
    Parent() { add_module("inner", inner); }
  } parent;
  const TemporaryFolder folder;
  for (const Module* module : {static_cast<const Module*>(&forgetful), static_cast<const Module*>(&parent)})
    EXPECT_EQ(
        error_of<ValueError>([&] { module->save_file(folder.file("m")); }),
        "[save] the module has no tensors to save: a member that is a module needs add_module(): " + folder.file("m"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(Module, RefusesAMismatchedStateWithoutChanges) {
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

TEST(Module, SavesATiedWeightOnceAndRefusesItsOtherName) {
  Pair from(1), to(2);
  to.load(from.named_parameters());
  EXPECT_TRUE(bit_equal(to.second.weight(), from.second.weight()));
  NamedTensors twice = from.named_parameters();
  twice.emplace_back("second.weight", zeros({2, 2}));
  EXPECT_EQ(error_of<ValueError>([&] { to.load(twice); }),
            "[load] the state does not fit the module: unexpected second.weight, which is another name of tied");
  EXPECT_TRUE(bit_equal(to.second.weight(), from.second.weight()));
}

TEST(Module, RefusesRepeatedNamesAndUndefinedTensors) {
  Pair pair(1);
  const Tensor before = pair.first.weight().copy();
  NamedTensors state = Pair(2).named_parameters();
  state.emplace_back("first.weight", zeros({2, 3}));
  EXPECT_EQ(error_of<ValueError>([&] { pair.load(state); }),
            "[load] the state does not fit the module: first.weight appears twice");
  state.pop_back();
  state[1].second = Tensor();
  EXPECT_EQ(error_of<ValueError>([&] { pair.load(state); }),
            "[load] the state does not fit the module: first.weight is undefined where the module has (2, 3) f32 on "
            "cpu");
  EXPECT_TRUE(bit_equal(pair.first.weight(), before));
}

TEST(Module, ZeroGradFreesTheGradients) {
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

/// (x - mean) weight, with a running mean of the inputs.
struct Centre : Layer {
  explicit Centre(DType dtype = DType::f64) {
    weight = constant_parameter("weight", {2}, 3.0, {.dtype = dtype});
    mean = register_buffer("mean", zeros({2}, {.dtype = dtype}));
    seen = register_buffer("seen", zeros({}, {.dtype = DType::i64}));
  }
  Tensor forward(const Tensor& x) override {
    if (training()) {
      const NoGradGuard no_grad;
      mean.copy_from(mean * 0.5 + x * 0.5);
      seen.copy_from(seen + 1.0);
    }
    return (x - mean) * weight;
  }
  void take(const std::string& name, const Tensor& tensor) { register_buffer(name, tensor); }
  Tensor weight, mean, seen;
};

Tensor pair_of(double a, double b) { return from_data<double>({a, b}, {2}); }

TEST(Buffers, AreSavedAndLoadedButNotTrained) {
  const TemporaryFolder folder;
  Centre centre, loaded;
  centre(pair_of(2, 4));
  EXPECT_THAT(names(centre.named_parameters()), ElementsAre("weight"));
  EXPECT_THAT(names(centre.named_buffers()), ElementsAre("mean", "seen"));
  EXPECT_THAT(names(centre.named_tensors()), ElementsAre("weight", "mean", "seen"));
  centre.save_file(folder.file("centre"));
  loaded.load_file(folder.file("centre"));
  EXPECT_THAT(loaded.mean.to_vector<double>(), ElementsAre(1, 2));
  EXPECT_EQ(loaded.seen.item(), 1);
  EXPECT_THAT(error_of<ValueError>([&] { loaded.load(centre.named_parameters()); }),
              HasSubstr("missing mean; missing seen"));
}

TEST(Buffers, ABroadcastBufferRefusesTheWholeLoad) {
  const TemporaryFolder folder;
  Centre centre, other;
  centre.take("repeated", expand(zeros({1}), {3}));
  other.take("repeated", arange(0, 3));
  other(pair_of(2, 4));
  other.save_file(folder.file("other"));
  const std::string refusal =
      "[load] the state does not fit the module: several elements of repeated share one place, (3,) f32 on cpu (a "
      "broadcast)";
  EXPECT_EQ(error_of<ValueError>([&] { centre.load(other.named_tensors()); }), refusal);
  EXPECT_EQ(error_of<ValueError>([&] { centre.load_file(folder.file("other")); }), refusal);
  EXPECT_EQ(centre.seen.item(), 0);
}

TEST(Buffers, MayBeLoadedFromOneAnother) {
  Centre centre;
  const Tensor a = full({2}, 1), b = full({2}, 2);
  centre.take("a", a);
  centre.take("b", b);
  NamedTensors state = centre.named_tensors();
  for (auto& [name, tensor] : state)
    if (name == "a" || name == "b") tensor = name == "a" ? b : a;
  centre.load(state);
  EXPECT_THAT(a.to_vector<double>(), ElementsAre(2, 2));
  EXPECT_THAT(b.to_vector<double>(), ElementsAre(1, 1));
}

TEST(Buffers, HaveNamesOfTheirOwnAndNoGradient) {
  Centre centre;
  EXPECT_EQ(error_of<ValueError>([&] { centre.take("weight", zeros({1})); }),
            "[module] a parameter, a buffer or a submodule is called 'weight' already");
  EXPECT_EQ(error_of<ValueError>([&] { centre.take("mean", zeros({1})); }),
            "[module] a parameter, a buffer or a submodule is called 'mean' already");
  EXPECT_EQ(error_of<Error>([&] { centre.take("table", zeros({1}).set_requires_grad()); }),
            "[module] a buffer is a tensor that requires no gradient: table (1,) f32 on cpu");
}

TEST(Freezing, RefusesUntrainableTensorsWithoutChanges) {
  struct Owner : Pair {
    using Pair::Pair;
    void own(const Tensor& tensor) { share_parameter("own", tensor); }
  } owner(1);
  const Tensor made = ones({2}).set_requires_grad() * 2.0;
  EXPECT_EQ(error_of<ValueError>([&] { owner.own(made); }),
            "[module] a parameter is a floating tensor, and a leaf: own (2,) f32 on cpu, the result of an operator");
  EXPECT_EQ(error_of<ValueError>([&] { owner.own(zeros({2}, {.dtype = DType::i64})); }),
            "[module] a parameter is a floating tensor, and a leaf: own (2,) i64 on cpu");
  const Tensor stand_in = ones({2, 2}).set_requires_grad() * 2.0;
  {
    const Substitution substitution(owner, {{"tied", stand_in}});
    EXPECT_EQ(error_of<Error>([&] { owner.freeze(); }),
              "[module] the result of an operator cannot be frozen: tied (2, 2) f32 on cpu");
  }
  for (const Tensor& parameter : owner.parameters()) EXPECT_TRUE(parameter.requires_grad());
}

TEST(Freezing, KeepsParametersFromLearning) {
  Pair pair(1);
  const Tensor x = ones({4, 3});
  SGD optimizer(pair.named_parameters(), {.learning_rate = 0.1});
  sum(pair.second(pair.first(x))).backward();
  pair.first.freeze();
  EXPECT_FALSE(pair.first.weight().grad().defined()) << "what it had is dropped";
  pair.second.zero_grad();
  sum(pair.second(pair.first(x))).backward();
  EXPECT_FALSE(pair.first.weight().grad().defined());
  EXPECT_TRUE(pair.second.weight().grad().defined());
  const Tensor frozen = pair.first.weight().copy(), free = pair.second.weight().copy();
  optimizer.step();
  EXPECT_TRUE(bit_equal(pair.first.weight(), frozen));
  EXPECT_FALSE(bit_equal(pair.second.weight(), free));
  pair.unfreeze();
  sum(pair.second(pair.first(x))).backward();
  EXPECT_TRUE(pair.first.weight().grad().defined());
}

TEST(ModuleConversion, CastsEveryFloatingTensorInPlace) {
  Centre centre;
  const Tensor weight = centre.weight, record = centre.weight;  // other handles
  centre.eval();
  sum(centre(pair_of(1, 2))).backward();
  int calls = 0;
  register_post_accumulate_hook(weight, [&calls](const Tensor&) { ++calls; });
  to(centre, DType::f32);
  EXPECT_EQ(weight.dtype(), DType::f32);
  EXPECT_TRUE(weight.is_same(centre.weight) && weight.requires_grad());
  EXPECT_EQ(centre.mean.dtype(), DType::f32);
  EXPECT_EQ(centre.seen.dtype(), DType::i64);
  EXPECT_EQ(weight.grad().dtype(), DType::f32);
  EXPECT_THAT(weight.grad().to_vector<double>(), ElementsAre(1, 2));
  sum(centre(ones({2}))).backward();
  EXPECT_EQ(calls, 1) << "hooks stay";
  EXPECT_THAT(weight.grad().to_vector<double>(), ElementsAre(2, 3));
  const Tensor same = centre.weight.detach();
  to(centre, DType::f32);
  EXPECT_TRUE(centre.weight.shares_storage_with(same)) << "nothing to do";
  EXPECT_EQ(error_of<DTypeError>([&] { to(centre, DType::i64); }), "[to] parameters are floating, which i64 is not");
}

TEST(ModuleConversion, MovesAModuleAndKeepsTiedWeightsTied) {
  Pair pair(1);
  to(pair, Device{DeviceType::sim, 7});
  EXPECT_TRUE(pair.first.weight().device().is_sim());
  EXPECT_THAT(names(pair.named_parameters()), ElementsAre("tied", "first.weight", "first.bias"));
  EXPECT_EQ(sum(pair.first(ones({4, 3}, {.device = Device{DeviceType::sim, 7}}))).item(), 0.0);
  const auto parameters = allocator_for(Device{DeviceType::sim, 7}).statistics().category_bytes;
  EXPECT_EQ(parameters[static_cast<std::size_t>(Category::parameter)].current, 12u * sizeof(float));
}

TEST(ModuleConversion, RefusesTheBackwardOfAnOlderGraph) {
  const Device sim{DeviceType::sim, 7};
  const auto refusal = [&](Layer& layer, const Tensor& weight, const auto& target) {
    const Tensor before = sum(layer(pair_of(1, 2)));
    to(layer, target);
    const std::string text = error_of<Error>([&] { before.backward(); });
    EXPECT_FALSE(weight.grad().defined());
    return text;
  };
  const std::string text = "[backward] a leaf was moved or cast after the forward pass, so its ";
  Centre centre;
  EXPECT_EQ(refusal(centre, centre.weight, DType::f32), text + "gradient no longer fits: (2,) f64 on cpu");
  sum(centre(ones({2}))).backward();
  EXPECT_EQ(centre.weight.grad().dtype(), DType::f32) << "the next graph is of what it is now";
  Centre moved;
  EXPECT_EQ(refusal(moved, moved.weight, sim), text + "gradient no longer fits: (2,) f64 on cpu");
  sum(moved(zeros({2}, {DType::f64, sim}))).backward();
  EXPECT_EQ(moved.weight.grad().device(), sim);
}

TEST(ModuleConversion, KeepsHooksForGraphsBeforeAndAfter) {
  Centre centre;
  int calls = 0;
  const Tensor before = sum(centre(pair_of(1, 2)));
  register_hook(centre.weight, [&calls](const Tensor& gradient) {
    ++calls;
    return gradient * 2.0;
  });
  to(centre, DType::f32);
  const Tensor after = sum(centre(ones({2})));
  EXPECT_THROW(before.backward(), Error);
  EXPECT_EQ(calls, 1);
  after.backward();
  EXPECT_EQ(calls, 2);
}

TEST(ModuleConversion, GivesOlderOptimizersAClearError) {
  Centre centre;
  AdamW optimizer(centre.named_parameters());
  to(centre, DType::f32);
  sum(centre(ones({2}))).backward();
  EXPECT_EQ(error_of<Error>([&] { optimizer.step(); }),
            "[optimizer] a parameter was moved or cast after the optimizer was made, and the state is still f64 on "
            "cpu: weight (2,) f32 on cpu");
  EXPECT_EQ(optimizer.steps(), 0);
  to(centre, DType::f64);
  optimizer.step();
  EXPECT_EQ(optimizer.steps(), 1) << "as it was when it was made";
}

TEST(FunctionalCall, RunsAModuleWithOtherTensorsAndSendsGradientsToThem) {
  Linear layer(3, 2, {}, {.dtype = DType::f64});
  const Tensor x = randn({4, 3}, {.dtype = DType::f64}), before = layer.weight().copy();
  const Tensor source = randn({2, 3}, {.dtype = DType::f64}).set_requires_grad();
  const Tensor weight = source * 2.0;  // the result of an operator
  const Tensor y = functional_call(layer, {{"weight", weight}}, x);
  EXPECT_TRUE(bit_equal(y, linear(x, weight, layer.bias())));
  EXPECT_TRUE(bit_equal(layer.weight(), before) && layer.weight().is_leaf());
  sum(y * y).backward();
  EXPECT_FALSE(layer.weight().grad().defined());
  EXPECT_TRUE(layer.bias().grad().defined()) << "what was not named is the module's own";
  const Tensor mine = source.detach().set_requires_grad();
  const Tensor again = linear(x, mine * 2.0, layer.bias());
  EXPECT_TRUE(bit_equal(source.grad(), grad({sum(again * again)}, {mine})[0]));
}

TEST(FunctionalCall, ReplacesTiedWeightsAndBuffersEverywhere) {
  Pair pair(1);
  const Tensor tied = ones({2, 2}).set_requires_grad(), x = ones({1, 2});
  const Tensor y = functional_call(pair, {{"tied", tied}}, [&] { return pair.second(x); });
  EXPECT_THAT(y.to_vector<float>(), ElementsAre(2, 2));
  sum(y).backward();
  EXPECT_TRUE(tied.grad().defined()) << "a leaf gets its own gradient";
  Centre centre;
  centre.eval();
  EXPECT_THAT(functional_call(centre, {{"mean", pair_of(1, 1)}}, pair_of(2, 3)).to_vector<double>(), ElementsAre(3, 6));
}

TEST(FunctionalCall, IsDifferentiableTwice) {
  Centre centre;
  centre.eval();
  const Tensor x = pair_of(0.5, -2);
  const GradcheckReport report = gradgradcheck(
      [&](const std::vector<Tensor>& in) {
        return std::vector{square(functional_call(centre, {{"weight", in[0]}}, x))};
      },
      {pair_of(0.3, 0.7).set_requires_grad()});
  EXPECT_TRUE(report) << report.text;
}

TEST(FunctionalCall, NestsAndEndsWhenTheCallThrows) {
  Centre centre;
  centre.eval();
  const NamedTensors one{{"weight", pair_of(1, 1)}}, two{{"weight", pair_of(2, 2)}};
  const auto first = [&] { return centre(pair_of(1, 1)).to_vector<double>()[0]; };
  {
    const Substitution outer(centre, one);
    {
      const Substitution inner(centre, two);
      EXPECT_EQ(first(), 2);
    }
    EXPECT_EQ(first(), 1);
  }
  EXPECT_EQ(
      error_of<IndexError>([&] { functional_call(centre, two, [&]() -> Tensor { throw IndexError("inside"); }); }),
      "inside");
  EXPECT_EQ(first(), 3);
}

TEST(FunctionalCall, RefusesMismatchedTensors) {
  Centre centre;
  EXPECT_EQ(error_of<ValueError>([&] {
              functional_call(centre, {{"weight", ones({3})}, {"bias", ones({2})}}, pair_of(1, 1));
            }),
            "[functional_call] the tensors do not fit the module: weight is (3,) f32 on cpu where the module has (2,) "
            "f64 on cpu; the module has no bias");
  EXPECT_TRUE(centre.weight.is_leaf());
  EXPECT_EQ(centre.weight.to_vector<double>()[0], 3);
}

// The second run would use the module's own parameters, and the gradient would be silently wrong.
TEST(FunctionalCall, RefusesCheckpointsInsideTheCall) {
  Linear layer(3, 3, {}, {.dtype = DType::f64});
  const Tensor x = randn({2, 3}, {.dtype = DType::f64});
  const NamedTensors tensors{{"weight", randn({3, 3}, {.dtype = DType::f64}).set_requires_grad()}};
  const auto checkpointed = [&] { return checkpoint([&](const Tensor& t) { return layer(t); }, x); };
  EXPECT_EQ(error_of<Error>([&] { functional_call(layer, tensors, checkpointed); }),
            "[checkpoint] the function cannot be run again: other tensors substitute the parameters of a module "
            "(Substitution, functional_call)");
  {
    const NoGradGuard no_grad;
    EXPECT_TRUE(bit_equal(functional_call(layer, tensors, checkpointed), functional_call(layer, tensors, x)));
  }
  // In the other order, the second run substitutes again.
  sum(checkpoint([&](const Tensor& t) { return functional_call(layer, tensors, t); }, x)).backward();
  const Tensor found = tensors[0].second.grad().copy();
  Tensor(tensors[0].second).set_grad({});
  sum(functional_call(layer, tensors, x)).backward();
  EXPECT_TRUE(bit_equal(found, tensors[0].second.grad()));
}

// A run before the substitution must not be repeated with the substituted parameters.
TEST(FunctionalCall, RefusesToRecomputeAnEarlierRun) {
  Linear layer(3, 3, {.bias = false}, {.dtype = DType::f64});
  const Tensor x = randn({2, 3}, {.dtype = DType::f64});
  Tensor other = randn({3, 3}, {.dtype = DType::f64}).set_requires_grad();
  const auto loss = [&] { return sum(checkpoint([&](const Tensor& t) { return tanh(layer(t)); }, x)); };
  const Tensor first = loss();
  {
    const Substitution standing_in(layer, {{"weight", other}});
    EXPECT_EQ(error_of<Error>([&] { first.backward(); }),
              "[checkpoint] the function cannot be run again: other tensors substitute the parameters of a module "
              "(Substitution, functional_call)");
  }
  const Tensor second = loss();
  swap_tensors(layer.weight(), other);
  EXPECT_EQ(error_of<Error>([&] { second.backward(); }),
            "[checkpoint] the function cannot be run again: input 1 of its operation 0, linear, is another tensor than "
            "in the first run: (3, 3) f64 on cpu");
  loss().backward();
  const Tensor found = layer.weight().grad().copy();
  Tensor(layer.weight()).set_grad({});
  sum(tanh(layer(x))).backward();
  EXPECT_TRUE(bit_equal(found, layer.weight().grad()));
}

// A leaf that the function makes is new in each run.
TEST(FunctionalCall, AllowsLeavesMadeInACheckpoint) {
  const Tensor x = ones({2, 3}).set_requires_grad();
  sum(checkpoint([](const Tensor& t) { return tanh(Linear(3, 3)(t)); }, x)).backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace poolgrad::nn
