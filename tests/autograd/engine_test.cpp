// Results of the engine: sums over paths, accumulation, grad(), second derivatives.
#include "autograd/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tensor/print.h"
#include "tests/autograd/local_operators.h"
#include "tests/cpu_timer.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Engine, GradientOfAProductIsTheOtherFactor) {
  Tensor a = leaf({1, 2, 3}), b = leaf({5, 6, 7});
  total(times(a, b)).backward();
  EXPECT_THAT(values(a.grad()), ElementsAre(5, 6, 7));
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 2, 3));
}

TEST(Engine, ATensorUsedTwiceGetsBothContributions) {
  Tensor x = leaf({3, -4});
  total(times(x, x)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(6, -8));
}

TEST(Engine, ADiamondAddsItsTwoPaths) {
  Tensor x = leaf({1, 2});
  Tensor middle = scaled(x, 2);
  total(plus(scaled(middle, 3), times(middle, middle))).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(6 + 8, 6 + 16));
}

TEST(Engine, RunsANodeOnceForAllItsConsumers) {
  Tensor x = leaf({1});
  int runs = 0;
  Tensor y = with_backward(x, [&runs](const BackwardCall& call) -> Gradients {
    ++runs;
    return {call.gradient()};
  });
  Tensor sum = y;
  for (int i = 0; i < 10; ++i) sum = plus(sum, y);
  sum.backward();
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(values(x.grad()), ElementsAre(11));
}

TEST(Engine, SkipsBranchesOutsideTheGraphOfTheOutput) {
  Tensor used = leaf({1, 2}), unused = leaf({3, 4});
  Tensor branch = times(used, unused);
  total(scaled(used, 5)).backward();
  EXPECT_THAT(values(used.grad()), ElementsAre(5, 5));
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(branch.requires_grad());
}

TEST(Engine, GivesUnusedOutputsNoGradient) {
  Tensor x = leaf({1, 2});
  auto [same, negative] = both_signs(x);
  total(negative).backward({}, true);
  EXPECT_THAT(values(x.grad()), ElementsAre(-1, -1));
  backward({total(same), total(scaled(negative, 3))});
  EXPECT_THAT(values(x.grad()), ElementsAre(-3, -3));
}

TEST(Engine, StopsAtAnUndefinedGradientAndContinuesElsewhere) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  bool ran = false;
  Tensor below = with_backward(x, [&ran](const BackwardCall& call) -> Gradients {
    ran = true;
    return {call.gradient()};
  });
  Tensor blocked = with_backward(below, [](const BackwardCall&) { return Gradients(1); });
  total(plus(blocked, scaled(y, 2))).backward();
  EXPECT_FALSE(ran);
  EXPECT_FALSE(x.grad().defined());
  EXPECT_THAT(values(y.grad()), ElementsAre(2, 2));
}

TEST(Engine, GradientsOfSeveralCallsAddUpUntilTheyAreReset) {
  Tensor x = leaf({1, 2});
  total(scaled(x, 3)).backward();
  total(scaled(x, 4)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(7, 7));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
  total(scaled(x, 5)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 5));
}

TEST(Engine, GivesLeavesSeparateMemoryForASharedGradient) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  total(plus(a, b)).backward();
  EXPECT_FALSE(a.grad().shares_storage_with(b.grad()));
  a.grad().fill(9.0);
  EXPECT_THAT(values(b.grad()), ElementsAre(1, 1));
  EXPECT_TRUE(b.grad().is_contiguous());
}

TEST(Engine, TheCallersGradientIsNeverWritten) {
  Tensor x = leaf({1, 2});
  Tensor gradient = from_data<double>({10, 20}, {2});
  x.backward(gradient);
  x.backward(gradient);
  EXPECT_THAT(values(gradient), ElementsAre(10, 20));
  EXPECT_THAT(values(x.grad()), ElementsAre(20, 40));
}

TEST(Engine, RunsSeveralOutputsInOnePass) {
  Tensor x = leaf({1, 2});
  Tensor y = scaled(x, 2), z = times(x, x);
  backward({y, z}, {from_data<double>({1, 1}, {2}), from_data<double>({10, 10}, {2})});
  EXPECT_THAT(values(x.grad()), ElementsAre(2 + 20, 2 + 40));
}

TEST(Engine, SkipsOutputsWithoutRequiresGrad) {
  Tensor x = leaf({2}), constant = ones({1}, {.dtype = DType::f64});
  backward({constant, scaled(x, 3)});
  EXPECT_THAT(values(x.grad()), ElementsAre(3));
}

TEST(Engine, AcceptsALeafAsAnOutput) {
  Tensor x = leaf({2});
  x.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(1));
}

TEST(Engine, NothingIsRecordedWithoutGradMode) {
  Tensor x = leaf({1, 2});
  {
    NoGradGuard guard;
    EXPECT_FALSE(times(x, x).requires_grad());
    EnableGradGuard again;
    EXPECT_TRUE(times(x, x).requires_grad());
  }
  EXPECT_TRUE(times(x, x).requires_grad());
}

TEST(Engine, DetachCutsTheTape) {
  Tensor x = leaf({1, 2});
  total(times(x, scaled(x, 3).detach())).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(3, 6));
}

TEST(Engine, EmptyTensorsHaveEmptyGradients) {
  Tensor x = zeros({0, 3}, {.dtype = DType::f64}).set_requires_grad();
  total(times(x, x)).backward();
  EXPECT_EQ(x.grad().shape(), (Shape{0, 3}));
}

TEST(Engine, NamesTheGradientWithTheWrongShape) {
  Tensor x = leaf({1, 2, 3});
  EXPECT_EQ(message_of<ShapeError>([&] { scaled(x, 2).backward(); }),
            "[backward] output 0 has 3 elements, not one: it needs a gradient of its shape, or sum() before: (3,) f64 "
            "on cpu");
  EXPECT_THROW(scaled(leaf({1, 2}), 2).backward(), ShapeError);
  EXPECT_EQ(message_of<ShapeError>([&] { scaled(zeros({0}).set_requires_grad(), 2).backward(); }),
            "[backward] output 0 has 0 elements, not one: it needs a gradient of its shape, or sum() before: (0,) f32 "
            "on cpu");
  EXPECT_EQ(message_of<ShapeError>([&] { scaled(x, 2).backward(ones({2}, {.dtype = DType::f64})); }),
            "[backward] the gradient is unlike output 0: gradient (2,) f64 on cpu, output (3,) f64 on cpu");
  EXPECT_EQ(message_of<DTypeError>([&] { scaled(x, 2).backward(ones({3})); }),
            "[backward] the gradient is unlike output 0: gradient (3,) f32 on cpu, output (3,) f64 on cpu");
  EXPECT_THAT(message_of<ValueError>([&] {
                backward({total(x), total(x)}, {Tensor()});
              }),
              HasSubstr("1 gradient for 2 outputs"));
  EXPECT_EQ(message_of([&] { backward({x.detach()}); }),
            "[backward] no output requires a gradient; call set_requires_grad() on an input and compute outside of a "
            "NoGradGuard");
}

TEST(Engine, NamesTheOperatorWithTheWrongGradient) {
  const auto run = [](const Gradients& returned) {
    Tensor x = leaf({1, 2, 3});
    total(with_backward(x, [returned](const BackwardCall&) { return returned; })).backward();
  };
  EXPECT_EQ(message_of<ShapeError>([&] { run({zeros({4}, {.dtype = DType::f64})}); }),
            "[odd] backward returned a gradient unlike input 0: gradient (4,) f64 on cpu, input (3,) f64 on cpu");
  EXPECT_EQ(message_of<DTypeError>([&] { run({zeros({3})}); }),
            "[odd] backward returned a gradient unlike input 0: gradient (3,) f32 on cpu, input (3,) f64 on cpu");
  EXPECT_EQ(message_of<DeviceError>([&] {
              run({zeros({3}, {.dtype = DType::f64, .device = {DeviceType::sim, 0}})});
            }),
            "[odd] backward returned a gradient unlike input 0: gradient (3,) f64 on sim:0, input (3,) f64 on cpu");
  EXPECT_EQ(message_of([&] { run({}); }), "[odd] backward returned 0 gradients for 1 input");
}

TEST(Engine, RejectsAFreedGraphBeforeItWritesAnyLeaf) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  Tensor shared = times(a, a);
  total(shared).backward();
  Tensor second = total(times(shared, b));
  EXPECT_EQ(message_of([&] { second.backward(); }),
            "[backward] the graph was freed by an earlier backward; pass retain_graph = true: times");
  EXPECT_FALSE(b.grad().defined());
  EXPECT_THAT(values(a.grad()), ElementsAre(2, 4));
}

TEST(Engine, RetainGraphAllowsAnotherPass) {
  Tensor x = leaf({1, 2});
  Tensor y = total(times(x, x));
  y.backward({}, true);
  y.backward({}, true);
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(6, 12));
  EXPECT_THROW(y.backward(), Error);
}

TEST(Engine, TwoRunsGiveTheSameBits) {
  const auto run = [] {
    Generator generator(7);
    Tensor x = randn({257}, {}, generator).set_requires_grad();
    std::vector<Tensor> parts;
    Tensor sum = x;
    for (int i = 0; i < 20; ++i) {
      parts.push_back(times(x, randn({257}, {}, generator)));
      sum = plus(sum, times(parts.back(), parts[static_cast<std::size_t>(i / 2)]));
    }
    total(sum).backward();
    return x.grad();
  };
  EXPECT_TRUE(bit_equal(run(), run()));
}

TEST(Engine, RunsTheNewestNodeFirst) {
  Tensor x = leaf({1});
  std::string order;
  const auto named = [&order](const Tensor& input, char name) {
    return with_backward(input, [&order, name](const BackwardCall& call) -> Gradients {
      order += name;
      return {call.gradient()};
    });
  };
  Tensor a = named(x, 'a');
  Tensor b = named(x, 'b');
  Tensor c = named(a, 'c');
  Tensor d = named(b, 'd');
  plus(plus(a, d), plus(b, c)).backward();
  EXPECT_EQ(order, "dcba");
}

TEST(Engine, CallsBackAtTheEndOfTheOutermostPass) {
  Tensor x = leaf({2});
  std::vector<std::string> order;
  Tensor y = with_backward(x, [&](const BackwardCall& call) -> Gradients {
    at_end_of_backward([&] { order.push_back("end"); });
    const EnableGradGuard guard;
    total(times(x, x)).backward();
    order.push_back("inner");
    if (order.size() > 2) throw Error("broken");
    return {call.gradient()};
  });
  y.backward({}, true);
  EXPECT_THAT(order, ElementsAre("inner", "end"));
  at_end_of_backward([&] { order.push_back("at once"); });
  EXPECT_THROW(y.backward(), Error);
  EXPECT_THAT(order, ElementsAre("inner", "end", "at once", "inner", "end"));
}

TEST(Engine, ThreadsRunTheirOwnGraphsAtTheSameTime) {
  Tensor shared = leaf({2});
  std::vector<double> results(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t)
    threads.emplace_back([&, t] {
      Tensor x = leaf({static_cast<double>(t)});
      for (int i = 0; i < 100; ++i) {
        x.set_grad({});
        total(times(times(x, x), shared)).backward();
      }
      results[t] = x.grad().item();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, ElementsAre(0, 4, 8, 12));
  EXPECT_EQ(shared.grad().item(), 100 * (0 + 1 + 4 + 9));
}

TEST(Grad, ReturnsGradientsWithoutWritingTheLeaves) {
  Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Tensor middle = times(x, y);
  const std::vector<Tensor> result = grad({total(times(middle, middle))}, {x, middle, y});
  EXPECT_THAT(values(result[0]), ElementsAre(18, 64));
  EXPECT_THAT(values(result[1]), ElementsAre(6, 16));
  EXPECT_THAT(values(result[2]), ElementsAre(6, 32));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(y.grad().defined());
}

TEST(Grad, RunsOnlyNodesOnThePathToTheInputs) {
  Tensor x = leaf({1}), y = leaf({2});
  std::vector<std::pair<bool, bool>> needed;
  const auto probe = [&needed](const Tensor& a, const Tensor& b) {
    Tensor out = run_binary(kernels::BinaryOp::add, a, b);
    record("probe", {a, b}, {out}, [&needed](const BackwardCall& call) -> Gradients {
      needed.emplace_back(call.needs(0), call.needs(1));
      return {call.gradient(), call.gradient()};
    });
    return out;
  };
  bool ran = false;
  Tensor side = with_backward(y, [&ran](const BackwardCall& call) -> Gradients {
    ran = true;
    return {call.gradient()};
  });
  Tensor out = probe(scaled(x, 3), side);
  EXPECT_THAT(values(grad({out}, {x}, {}, {.retain_graph = true})[0]), ElementsAre(3));
  EXPECT_FALSE(ran);
  out.backward();
  EXPECT_TRUE(ran);
  EXPECT_THAT(needed, ElementsAre(std::pair(true, false), std::pair(true, true)));
}

TEST(Grad, ReturnsTheSeedForTheOutputItself) {
  Tensor x = leaf({1, 2});
  Tensor y = scaled(x, 3);
  EXPECT_THAT(values(grad({y}, {y}, {from_data<double>({7, 8}, {2})})[0]), ElementsAre(7, 8));
}

TEST(Grad, AnInputMayBeNamedTwice) {
  Tensor x = leaf({1, 2});
  const std::vector<Tensor> result = grad({total(times(x, x))}, {x, x});
  EXPECT_THAT(values(result[0]), ElementsAre(2, 4));
  EXPECT_THAT(values(result[1]), ElementsAre(2, 4));
}

TEST(Grad, TakesTimeLinearInTheNumberOfInputs) {
  const auto seconds = [](std::size_t count) {
    std::vector<Tensor> leaves;
    for (std::size_t i = 0; i < count; ++i) leaves.push_back(leaf({1}));
    Tensor out = Tensor::empty({1}, {.dtype = DType::f64}).fill(0.0);
    record("fan", leaves, {out},
           [count](const BackwardCall& call) -> Gradients { return Gradients(count, call.gradient()); });
    const CpuTimer timer;
    EXPECT_EQ(grad({out}, leaves).back().item(), 1);
    return timer.seconds();
  };
  const double few = std::min(seconds(2000), seconds(2000));
  EXPECT_LT(seconds(64000), 5 * 32 * few) << "quadratic: 1024 times as long";
}

TEST(Grad, AnUnusedInputIsAnErrorUnlessAllowed) {
  Tensor x = leaf({1}), unused = leaf({2});
  Tensor y = scaled(x, 3);
  EXPECT_EQ(message_of([&] {
              grad({y}, {x, unused}, {}, {.retain_graph = true});
            }),
            "[grad] input 1 did not contribute to the outputs; pass allow_unused = true: (1,) f64 on cpu");
  const std::vector<Tensor> result = grad({y}, {x, unused}, {}, {}, true);
  EXPECT_TRUE(result[0].defined());
  EXPECT_FALSE(result[1].defined());
  EXPECT_EQ(message_of([&] { grad({scaled(x, 3)}, {x.detach()}); }),
            "[grad] input 0 does not require a gradient: (1,) f64 on cpu");
}

TEST(SecondDerivative, IsSixXForXCubed) {
  Tensor x = leaf({2, -3});
  Tensor first = grad({total(times(times(x, x), x))}, {x}, {}, {.create_graph = true})[0];
  EXPECT_THAT(values(first), ElementsAre(12, 27));
  Tensor second = grad({total(first)}, {x}, {}, {.create_graph = true})[0];
  EXPECT_THAT(values(second), ElementsAre(12, -18));
  EXPECT_THAT(values(grad({total(second)}, {x})[0]), ElementsAre(6, 6));
}

TEST(SecondDerivative, PassesThroughASavedOutput) {
  Tensor x = leaf({0.5, -1});
  Tensor derivative = exponential(x);
  const std::vector<double> expected = values(derivative);
  for (int order = 0; order < 4; ++order) {
    derivative = grad({total(derivative)}, {x}, {}, {.create_graph = true})[0];
    ASSERT_EQ(values(derivative), expected) << "order " << order + 1;
  }
}

TEST(SecondDerivative, FollowsTheAccumulatedGradient) {
  Tensor x = leaf({2});
  times(times(x, x), x).backward({}, false, true);
  Tensor gradient = x.grad();
  ASSERT_TRUE(gradient.requires_grad());
  x.set_grad({});
  gradient.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(12));
}

TEST(SecondDerivative, SurvivesALaterAccumulation) {
  Tensor x = leaf({2});
  times(x, x).backward({}, false, true);       // x.grad() = 2 x, with a graph
  Tensor squared = times(x.grad(), x.grad());  // 4 x^2, keeps x.grad()
  times(x, x).backward();                      // must not write into x.grad()
  EXPECT_THAT(values(x.grad()), ElementsAre(8));
  x.set_grad({});
  squared.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(16));
}

}  // namespace
}  // namespace poolgrad
