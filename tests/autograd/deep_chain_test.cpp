// A chain of 100,000 operators: the tape must not recurse. The build runs this test with a stack of 1 MiB.
#include <gtest/gtest.h>

#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;

constexpr int length = 100'000;

TEST(DeepChain, RunsForwardBackwardAndDestruction) {
  const std::int64_t nodes = live_node_count();
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < length; ++i) y = scaled(y, 1.0);
  EXPECT_EQ(live_node_count(), nodes + length + 1);
  y.backward();
  EXPECT_EQ(x.grad().item(), 1.0);
  y = Tensor();
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(DeepChain, IsDestroyedWithoutRunning) {
  const std::int64_t nodes = live_node_count();
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < length; ++i) y = plus(y, x);
  y = Tensor();
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(DeepChain, IsDestroyedThroughSavedTensors) {
  const std::int64_t nodes = live_node_count();
  Tensor x = leaf({1});
  Tensor y = x;
  // Each node keeps the tensor before it, which keeps its node, and so on. The constant cuts the edge to that node.
  for (int i = 0; i < length; ++i) {
    Tensor out = y.copy();
    record("keeps", {x}, {out},
           [saved = SavedTensor(y)](const BackwardCall& call) -> Gradients { return {call.gradient()}; });
    y = out;
  }
  EXPECT_EQ(live_node_count(), nodes + length + 1);
  y = Tensor();
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(DeepChain, IsDestroyedThroughLeafGradients) {
  const std::int64_t nodes = live_node_count();
  Tensor head = leaf({1});
  // The gradient of each leaf has a graph that leads to the previous leaf.
  for (int i = 0; i < length; ++i) {
    Tensor next = leaf({1});
    next.set_grad(scaled(head, 1.0));
    head = next;
  }
  head = Tensor();
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(DeepChain, RunsThroughSavedTensorsAndReleasesThemInTurn) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < length; ++i) y = times(y, x);
  y.backward();
  EXPECT_EQ(x.grad().item(), length + 1);
}

TEST(DeepChain, HasASecondDerivative) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 2000; ++i) y = times(y, x);
  Tensor first = grad({y}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(grad({first}, {x})[0].item(), 2001.0 * 2000.0);
}

}  // namespace
}  // namespace poolgrad
