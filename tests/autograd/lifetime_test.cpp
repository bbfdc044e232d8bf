// Graphs are freed with their tensors, also after errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::ElementsAre;

std::uint64_t live_bytes(Device device = cpu) { return allocator_for(device).statistics().requested_bytes.current; }

class Lifetime : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(live_node_count(), nodes_);
    EXPECT_EQ(live_bytes(), bytes_);
  }
  const std::int64_t nodes_ = live_node_count();
  const std::uint64_t bytes_ = live_bytes();
};

TEST_F(Lifetime, EndsForAGraphWithoutBackward) {
  Tensor x = leaf({1, 2});
  Tensor y = total(times(exponential(x), x));
  EXPECT_EQ(live_node_count(), nodes_ + 4);  // three operators and one leaf
}

TEST_F(Lifetime, EndsForAGraphAfterBackward) {
  Tensor x = leaf({1, 2});
  total(times(exponential(x), x)).backward();
  EXPECT_EQ(live_node_count(), nodes_);
}

TEST_F(Lifetime, EndsForARetainedGraph) {
  Tensor x = leaf({1, 2});
  Tensor y = total(times(x, x));
  y.backward({}, true);
  EXPECT_EQ(live_node_count(), nodes_ + 3);
}

TEST_F(Lifetime, EndsAfterSecondDerivatives) {
  Tensor x = leaf({1, 2});
  Tensor first = grad({total(times(exponential(x), x))}, {x}, {}, {.create_graph = true})[0];
  grad({total(first)}, {x});
}

TEST_F(Lifetime, EndsForALeafWithADifferentiableGradient) {
  Tensor x = leaf({1, 2}), weight = leaf({3, 4});
  total(times(times(exponential(x), x), weight)).backward({}, false, /*create_graph=*/true);
  EXPECT_TRUE(x.grad().requires_grad());
  const Tensor penalty = total(times(x.grad(), weight.grad()));
  x.set_grad({});
  penalty.backward({}, false, /*create_graph=*/true);  // a graph through both leaves and their gradients
  EXPECT_TRUE(x.grad().requires_grad());
}

TEST_F(Lifetime, EndsForALeafThatRequiresGradLater) {
  Tensor x = from_data<double>({1, 2}, {2}), weight = leaf({3, 4});
  const Tensor y = times(x, weight);
  x.set_requires_grad();
  total(times(y, times(x, x))).backward({}, false, /*create_graph=*/true);
}

TEST_F(Lifetime, EndsWithTheLastTensorOfANode) {
  Tensor x = leaf({1, 2});
  Tensor y = times(x, x);
  Tensor z = scaled(y, 2);
  y = Tensor();
  EXPECT_EQ(live_node_count(), nodes_ + 3);
  z = Tensor();
  EXPECT_EQ(live_node_count(), nodes_);
}

TEST_F(Lifetime, EndsForALeafDestroyedBeforeItsGraph) {
  Tensor y;
  {
    Tensor x = leaf({1, 2});
    y = total(times(x, x));
  }
  y.backward();
}

TEST_F(Lifetime, EndsWhenABackwardThrows) {
  Tensor x = leaf({1, 2});
  Tensor loss = total(times(
      with_backward(exponential(x), [](const BackwardCall&) -> Gradients { throw std::runtime_error("on purpose"); }),
      x));
  const std::uint64_t before = live_bytes();
  EXPECT_THROW(loss.backward(), std::runtime_error);
  EXPECT_LT(live_bytes(), before) << "the saved tensors are gone although the loss is still held";
  EXPECT_TRUE(grad_enabled());
  EXPECT_EQ(Node::current(), nullptr);
  EXPECT_THROW(loss.backward(), Error) << "the graph was freed";

  x.set_grad({});
  total(times(x, x)).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(2, 4));
}

TEST_F(Lifetime, EndsForNodesBehindAThrowingBackward) {
  Tensor x = ones({1 << 12}).set_requires_grad();
  const std::uint64_t before = live_bytes();
  Tensor y = x;
  for (int i = 0; i < 3; ++i) y = exponential(times(y, y));
  const Tensor loss =
      with_backward(total(y), [](const BackwardCall&) -> Gradients { throw std::runtime_error("on purpose"); });
  y = Tensor();
  EXPECT_GE(live_bytes(), before + 3 * (1 << 14)) << "the outputs of exponential()";
  EXPECT_THROW(loss.backward(), std::runtime_error);  // in the first node of the backward pass
  EXPECT_LE(live_bytes(), before + 64) << "only the loss";
}

TEST_F(Lifetime, ContinuesForARetainedGraphAfterAThrow) {
  Tensor x = leaf({1, 2});
  bool fail = true;
  Tensor y = with_backward(times(x, x), [&fail](const BackwardCall& call) -> Gradients {
    if (fail) throw std::runtime_error("on purpose");
    return {call.gradient()};
  });
  Tensor loss = total(y);
  EXPECT_THROW(loss.backward({}, true), std::runtime_error);
  fail = false;
  loss.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(2, 4));
}

TEST_F(Lifetime, EndsWhenAHookThrows) {
  Tensor x = leaf({1, 2});
  Tensor y = times(x, x);
  register_hook(y, [](const Tensor&) -> Tensor { throw std::runtime_error("on purpose"); });
  EXPECT_THROW(total(y).backward(), std::runtime_error);
}

TEST(OutOfMemoryInBackward, FreesTheGraphAndASmallerBatchWorks) {
  constexpr std::size_t capacity = 64 << 20;
  configure_simulated_device(3, capacity);
  const Device device{DeviceType::sim, 3};
  const std::int64_t nodes = live_node_count();
  const auto step = [device](std::int64_t megabytes) {
    Tensor x = ones({megabytes << 18}, {.device = device}).set_requires_grad();
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = times(y, y);
    // Allocates far more in its backward than the graph so far.
    y = with_backward(y, [megabytes](const BackwardCall& call) -> Gradients {
      Tensor workspace = Tensor::empty({megabytes << 18, 8}, call.gradient().options());
      return {call.gradient()};
    });
    total(y).backward();
  };
  EXPECT_THROW(step(6), OutOfMemoryError);
  EXPECT_EQ(live_node_count(), nodes);
  EXPECT_EQ(live_bytes(device), 0u);
  EXPECT_NO_THROW(step(2));
  EXPECT_EQ(live_bytes(device), 0u);
}

TEST(GradientMemory, AdoptsTheFirstGradientAndAddsLaterOnesInPlace) {
  constexpr std::int64_t n = 1 << 14;
  Tensor x = ones({n}).set_requires_grad();
  Tensor gradient = ones({n});
  const auto requests = [] { return allocator_for(cpu).statistics().requests; };

  Tensor y = scaled(x, 2);
  std::uint64_t before = requests();
  y.backward(gradient);
  EXPECT_EQ(requests() - before, 1u) << "only the gradient that scaled() makes";

  const Tensor held = x.grad();
  y = scaled(x, 2);
  before = requests();
  y.backward(gradient);
  EXPECT_EQ(requests() - before, 1u);
  EXPECT_TRUE(held.is_same(x.grad()));
  EXPECT_EQ(held.to_vector<float>()[7], 4.0f);
}

TEST(GradientMemory, ReusesUnsharedMemoryForSumsOfPaths) {
  constexpr std::int64_t n = 1 << 14;
  Tensor x = ones({n}).set_requires_grad();
  Tensor y = plus(plus(scaled(x, 2), scaled(x, 3)), scaled(x, 4));
  Tensor gradient = ones({n});
  const std::uint64_t before = allocator_for(cpu).statistics().requests;
  y.backward(gradient);
  EXPECT_EQ(allocator_for(cpu).statistics().requests - before, 3u) << "one for each scaled(), none for the sums";
  EXPECT_EQ(x.grad().to_vector<float>()[3], 9.0f);
}

TEST(GradientMemory, CopiesAViewOfALargerTensor) {
  Tensor x = ones({4}).set_requires_grad();
  Tensor large = zeros({1000});
  with_backward(x, [](const BackwardCall&) -> Gradients {
    return {zeros({1000}).alias({{4}, {1}, 100})};
  }).backward(ones({4}));
  EXPECT_EQ(x.grad().storage()->bytes(), 16u);
}

TEST(GradientMemory, HasTheGradientTag) {
  Tensor x = ones({1 << 14}).set_requires_grad();
  const auto gradient_bytes = [] {
    const Statistics statistics = allocator_for(cpu).statistics();
    return statistics.category_bytes[static_cast<std::size_t>(Category::gradient)].current;
  };
  const std::uint64_t before = gradient_bytes();
  total(times(x, x)).backward();
  EXPECT_EQ(gradient_bytes() - before, std::uint64_t{4} << 14);
}

}  // namespace
}  // namespace poolgrad
