// Hooks on tensors and nodes: their order, arguments, allowed changes and lifetime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Hooks, SeeTheCompleteGradientOnce) {
  Tensor x = leaf({3});
  Tensor y = scaled(x, 2);
  std::vector<double> seen;
  register_hook(y, [&seen](const Tensor& gradient) {
    seen.push_back(gradient.item());
    return Tensor();
  });
  plus(plus(y, y), scaled(y, 10)).backward();
  EXPECT_THAT(seen, ElementsAre(12));
  EXPECT_THAT(values(x.grad()), ElementsAre(24));
}

TEST(Hooks, PassTheReplacementOn) {
  Tensor x = leaf({3});
  Tensor y = scaled(x, 2);
  register_hook(y, [](const Tensor& gradient) { return scaled(gradient, 100); });
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(200));
}

TEST(Hooks, RunInOrderOfRegistration) {
  Tensor x = leaf({1});
  Tensor y = scaled(x, 1);
  register_hook(y, [](const Tensor& gradient) { return scaled(gradient, 3); });
  register_hook(y, [](const Tensor& gradient) { return plus(gradient, ones({1}, {.dtype = DType::f64})); });
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(4));
}

TEST(Hooks, OnALeafRunBeforeAccumulationAndForEveryGraph) {
  Tensor x = leaf({1, 1});
  int calls = 0;
  register_hook(x, [&calls](const Tensor& gradient) {
    ++calls;
    return scaled(gradient, 10);
  });
  total(plus(x, scaled(x, 2))).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(30, 30));
  total(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(40, 40));
  EXPECT_EQ(calls, 2);
}

TEST(Hooks, AddedToALeafAfterTheForwardPassRun) {
  Tensor x = leaf({1});
  Tensor y = scaled(x, 2);
  register_hook(x, [](const Tensor& gradient) { return scaled(gradient, 5); });
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(10));
}

TEST(Hooks, OnALeafRunWithHooksOnItsNode) {
  Tensor x = leaf({1});
  Tensor y = scaled(x, 2);
  gradient_edge(x).node->add_hook([](Gradients& gradients) { gradients[0] = scaled(gradients[0], 7); });
  register_hook(x, [](const Tensor& gradient) { return scaled(gradient, 5); });
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(70));
}

TEST(Hooks, AlsoRunForGrad) {
  Tensor x = leaf({1});
  register_hook(x, [](const Tensor& gradient) { return scaled(gradient, 5); });
  EXPECT_THAT(values(grad({scaled(x, 2)}, {x})[0]), ElementsAre(10));
}

TEST(Hooks, SeeOnlyTheirOwnOutput) {
  Tensor x = leaf({1});
  auto [same, negative] = both_signs(x);
  std::vector<double> seen;
  register_hook(negative, [&seen](const Tensor& gradient) {
    seen.push_back(gradient.item());
    return scaled(gradient, 10);
  });
  same.backward({}, true);
  EXPECT_THAT(seen, IsEmpty());
  x.set_grad({});
  backward({same, negative}, {full({1}, 3, {.dtype = DType::f64}), full({1}, 7, {.dtype = DType::f64})});
  EXPECT_THAT(seen, ElementsAre(7));
  EXPECT_THAT(values(x.grad()), ElementsAre(3 - 70));
}

TEST(Hooks, OnANodeSeeAllItsOutputGradients) {
  Tensor x = leaf({1});
  auto [same, negative] = both_signs(x);
  gradient_edge(same).node->add_hook([](Gradients& gradients) {
    ASSERT_EQ(gradients.size(), 2u);
    EXPECT_FALSE(gradients[1].defined());
    gradients[1] = gradients[0];
  });
  same.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0));
}

TEST(Hooks, MayRunAnotherBackwardOverAnotherGraph) {
  Tensor x = leaf({2}), other = leaf({5});
  Tensor y = scaled(x, 3);
  register_hook(y, [&other](const Tensor&) {
    EnableGradGuard guard;  // backward() disables gradients
    times(other, other).backward();
    return Tensor();
  });
  y.backward();
  EXPECT_THAT(values(other.grad()), ElementsAre(10));
  EXPECT_THAT(values(x.grad()), ElementsAre(3));
}

TEST(Hooks, MayRunAnotherBackwardOverTheSameGraph) {
  Tensor x = leaf({2});
  Tensor y = times(x, x);
  Tensor z = scaled(y, 5);
  bool first = true;
  register_hook(y, [&](const Tensor&) {
    if (std::exchange(first, false)) z.backward({}, true);
    return Tensor();
  });
  z.backward({}, true);
  EXPECT_THAT(values(x.grad()), ElementsAre(20 + 20));
}

TEST(Hooks, MayReleaseTheTensorOfTheRunningPass) {
  Tensor x = leaf({2});
  Tensor y = times(x, x);
  register_hook(x, [&y](const Tensor&) {
    y = Tensor();
    return Tensor();
  });
  y.backward();
  EXPECT_FALSE(y.defined());
  EXPECT_THAT(values(x.grad()), ElementsAre(4));
}

TEST(Hooks, AreRemovedByTheirHandle) {
  Tensor x = leaf({1}), y = scaled(x, 1);
  HookHandle on_y = register_hook(y, [](const Tensor& gradient) { return scaled(gradient, 3); });
  HookHandle on_x = register_hook(x, [](const Tensor& gradient) { return scaled(gradient, 5); });
  HookHandle on_node = gradient_edge(y).node->add_hook([](Gradients& all) { all[0] = scaled(all[0], 7); });
  const auto gradient = [&] { return grad({y}, {x}, {}, {.retain_graph = true})[0].item(); };
  EXPECT_EQ(gradient(), 105);
  on_y.remove();
  EXPECT_EQ(gradient(), 35);
  on_x.remove();
  on_x.remove();
  EXPECT_EQ(gradient(), 7);
  on_node.remove();
  EXPECT_EQ(gradient(), 1);
  HookHandle().remove();
}

TEST(Hooks, MayBeRemovedAfterTheirTensor) {
  HookHandle handle;
  {
    Tensor x = leaf({1});
    handle = register_hook(x, [](const Tensor&) { return Tensor(); });
  }
  handle.remove();
}

TEST(Hooks, MayRemoveThemselvesAndOthersWhileTheyRun) {
  Tensor x = leaf({1});
  std::vector<int> ran;
  std::vector<HookHandle> handles(3);
  for (std::size_t i = 0; i < 3; ++i)
    handles[i] = register_hook(x, [&, i](const Tensor&) {
      ran.push_back(static_cast<int>(i));
      if (i == 0) handles[0].remove();
      if (i == 1) handles[2].remove();
      return Tensor();
    });
  scaled(x, 1).backward();
  scaled(x, 1).backward();
  EXPECT_THAT(ran, ElementsAre(0, 1, 1));
}

TEST(Hooks, ReleaseACapturedTensorOnRemoval) {
  const std::int64_t nodes = live_node_count();
  const auto bytes = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const auto before = bytes();
  {
    Tensor x = leaf({1}), y = scaled(x, 2);
    HookHandle on_x = register_hook(x, [x](const Tensor&) { return Tensor(); });
    HookHandle on_y = register_hook(y, [y](const Tensor&) { return Tensor(); });
    y.backward();
    on_x.remove();
    on_y.remove();
  }
  EXPECT_EQ(live_node_count(), nodes);
  EXPECT_EQ(bytes(), before);
}

TEST(Hooks, WithAWeakReferenceNeedNoRemoval) {
  const auto bytes = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const auto before = bytes();
  {
    Tensor x = leaf({1});
    double seen = 0;
    register_hook(x, [record = std::weak_ptr(x.grad_record()), &seen](const Tensor& gradient) {
      if (const auto alive = record.lock(); alive && alive->grad().defined()) seen = alive->grad().item();
      return gradient;
    });
    scaled(x, 2).backward();
    scaled(x, 3).backward();
    EXPECT_EQ(seen, 2.0);
  }
  EXPECT_EQ(bytes(), before);
}

TEST(PostAccumulateHooks, SeeTheWholeGradientOncePerPass) {
  Tensor x = leaf({3});
  std::vector<double> seen;
  register_post_accumulate_hook(x, [&seen](const Tensor& gradient) { seen.push_back(gradient.item()); });
  plus(times(x, x), scaled(x, 10)).backward();
  EXPECT_THAT(seen, ElementsAre(16)) << "three uses, one call";
  scaled(x, 1).backward();
  EXPECT_THAT(seen, ElementsAre(16, 17)) << "what there was is part of it";
  EXPECT_THAT(values(x.grad()), ElementsAre(17));
}

TEST(PostAccumulateHooks, MayWriteTheLeafAndDropItsGradientDuringThePass) {
  Tensor early = leaf({2}), late = leaf({5});
  register_post_accumulate_hook(late, [&](const Tensor& gradient) {
    EXPECT_FALSE(early.grad().defined()) << "the later operator runs first";
    late.copy_from(plus(late, scaled(gradient, -0.5)));
    late.set_grad({});
  });
  times(times(early, early), late).backward();
  EXPECT_THAT(values(late.detach()), ElementsAre(5 - 0.5 * 4));
  EXPECT_FALSE(late.grad().defined());
  EXPECT_THAT(values(early.grad()), ElementsAre(2 * 2 * 5)) << "of the value in the forward pass";
}

TEST(PostAccumulateHooks, RunAfterTheOthersInOrderAndAreRemovedByTheirHandle) {
  Tensor x = leaf({1});
  std::vector<std::string> ran;
  HookHandle first = register_post_accumulate_hook(x, [&ran](const Tensor& g) {
    EXPECT_EQ(g.item(), 30) << "what the hook before made of it";
    ran.push_back("first");
  });
  register_post_accumulate_hook(x, [&ran](const Tensor&) { ran.push_back("second"); });
  register_hook(x, [&ran](const Tensor& gradient) {
    ran.push_back("before");
    return scaled(gradient, 10);
  });
  scaled(x, 3).backward();
  EXPECT_THAT(ran, ElementsAre("before", "first", "second"));
  first.remove();
  ran.clear();
  x.set_grad({});
  scaled(x, 3).backward();
  EXPECT_THAT(ran, ElementsAre("before", "second"));
}

TEST(PostAccumulateHooks, DoNotRunWithoutAccumulation) {
  Tensor x = leaf({1}), other = leaf({1});
  int calls = 0;
  register_post_accumulate_hook(x, [&calls](const Tensor&) { ++calls; });
  grad({scaled(x, 3)}, {x});
  scaled(other, 3).backward();
  EXPECT_EQ(calls, 0);
}

TEST(PostAccumulateHooks, EndThePassWhenTheyThrow) {
  Tensor x = leaf({1});
  HookHandle handle = register_post_accumulate_hook(x, [](const Tensor&) { throw ValueError("no"); });
  EXPECT_EQ(message_of<ValueError>([&] { scaled(x, 3).backward(); }), "no");
  handle.remove();
  x.set_grad({});
  scaled(x, 3).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(3));
}

TEST(PostAccumulateHooks, NeedALeafThatRequiresGrad) {
  Tensor x = leaf({1, 2});
  const auto nothing = [](const Tensor&) {};
  const std::string text =
      "[register_post_accumulate_hook] only a leaf that requires a gradient accumulates one: (2,) f64 on cpu";
  EXPECT_EQ(message_of([&] { register_post_accumulate_hook(scaled(x, 1), nothing); }), text);
  EXPECT_EQ(message_of([&] { register_post_accumulate_hook(x.detach(), nothing); }), text);
}

TEST(Hooks, AreCheckedLikeOperators) {
  Tensor x = leaf({1, 2});
  register_hook(x, [](const Tensor&) { return zeros({3}, {.dtype = DType::f64}); });
  EXPECT_EQ(message_of<ShapeError>([&] { total(x).backward(); }),
            "[register_hook] the hook returned a gradient unlike its tensor: gradient (3,) f64 on cpu, "
            "tensor (2,) f64 on cpu");
  EXPECT_EQ(message_of([&] { register_hook(x.detach(), [](const Tensor& gradient) { return gradient; }); }),
            "[register_hook] the tensor does not require a gradient: (2,) f64 on cpu");
  EXPECT_EQ(message_of<ValueError>([&] { register_hook(x, nullptr); }),
            "[register_hook] the hook is empty: (2,) f64 on cpu");
  EXPECT_EQ(message_of<ValueError>([&] { register_post_accumulate_hook(x, nullptr); }),
            "[register_post_accumulate_hook] the hook is empty: (2,) f64 on cpu");
}

TEST(Hooks, MayBeAddedToALeafFromSeveralThreads) {
  std::vector<Tensor> leaves;
  for (int i = 0; i < 3000; ++i) leaves.push_back(leaf({1}));
  std::atomic<int> calls{0}, arrived{0};
  const auto add_hooks = [&] {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      for (++arrived; arrived < 2 * static_cast<int>(i + 1);) std::this_thread::yield();
      register_hook(leaves[i], [&calls](const Tensor&) {
        ++calls;
        return Tensor();
      });
      register_post_accumulate_hook(leaves[i], [&calls](const Tensor&) { ++calls; });
    }
  };
  std::thread other(add_hooks);
  add_hooks();
  other.join();
  for (const Tensor& x : leaves) total(x).backward();
  EXPECT_EQ(calls, 4 * 3000);
}

}  // namespace
}  // namespace poolgrad
