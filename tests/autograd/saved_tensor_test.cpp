// Saved tensors: versions, policies, and the time of their release.
#include "autograd/engine/saved_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "autograd/operators/views.h"
#include "tensor/print.h"
#include "tests/autograd/local_operators.h"

namespace poolgrad {
namespace {

using namespace local;
using testing::DoubleNear;
using testing::ElementsAre;

TEST(SavedTensor, ReturnsTheSameDataAndGraphEdge) {
  Tensor x = leaf({1, 2}), y = scaled(x, 2);
  for (const Tensor& kept : {x, y}) {
    const Tensor back = SavedTensor(kept).unpack();
    EXPECT_TRUE(back.shares_storage_with(kept));
    EXPECT_TRUE(bit_equal(back, kept));
    EXPECT_EQ(gradient_edge(back).node, gradient_edge(kept).node);
  }
  EXPECT_FALSE(SavedTensor(x.detach()).unpack().requires_grad());
  EXPECT_FALSE(SavedTensor().defined());
  EXPECT_FALSE(SavedTensor(Tensor()).defined());
  EXPECT_FALSE(SavedTensor(Tensor()).unpack().defined());
}

TEST(SavedTensor, ReportsAnInPlaceWrite) {
  Tensor x = leaf({1, 2}), weight = from_data<double>({3, 4}, {2});
  Tensor y = total(times(x, weight));
  weight.fill(0.0);
  EXPECT_EQ(message_of([&] { y.backward(); }),
            "[times] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(SavedTensor, DetectsAWriteThroughAView) {
  Tensor x = leaf({1, 2}), weight = from_data<double>({3, 4}, {2});
  Tensor y = total(times(x, weight));
  weight.alias(selected(weight.geometry(), 0, 1)).fill(9.0);
  EXPECT_THROW(y.backward(), Error);
}

TEST(SavedTensor, DetectsAWriteToASavedOutput) {
  Tensor x = leaf({1, 2});
  Tensor y = exponential(x), z = total(y);
  {
    NoGradGuard guard;
    y.fill(0.0);
  }
  EXPECT_EQ(message_of([&] { z.backward(); }),
            "[exponential] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(SavedTensor, DetectsALaterAccumulation) {
  Tensor x = leaf({1, 2}), weight = leaf({3, 4});
  total(times(x, x)).backward();
  const Tensor penalty = total(times(x.grad(), weight));
  total(times(x, x)).backward();  // adds to x.grad() in place
  EXPECT_EQ(message_of([&] { penalty.backward(); }),
            "[times] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(SavedTensor, AllowsWritesBeforeSavingAndToUnsavedTensors) {
  Tensor x = leaf({1, 2}), weight = from_data<double>({3, 4}, {2});
  weight.fill(5.0);
  Tensor product = times(x, weight);
  Tensor y = total(product);
  {
    NoGradGuard guard;
    product.fill(0.0);
  }
  y.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(5, 5));
}

TEST(SavedTensor, DetectsAnOptimizerStepBetweenForwardAndBackward) {
  Tensor x = leaf({1, 2}), weight = leaf({3, 4});
  Tensor y = total(times(x, weight));
  {
    NoGradGuard guard;
    weight.fill(0.0);
  }
  EXPECT_THROW(y.backward(), Error);
}

TEST(SavedTensor, DoesNotKeepTheGraphOfAnOutputAlive) {
  const std::int64_t nodes = live_node_count();
  Tensor x = leaf({1, 2});
  { Tensor y = exponential(x); }
  EXPECT_EQ(live_node_count(), nodes);
  Tensor z = total(exponential(x));
  z.backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(DoubleNear(std::exp(1.0), 1e-12), DoubleNear(std::exp(2.0), 1e-12)));
}

TEST(SavedTensor, IsReleasedAfterItsNodeRuns) {
  constexpr std::int64_t n = 1 << 16;
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  Tensor x = ones({n}).set_requires_grad();
  Tensor y = x;
  std::vector<std::uint64_t> seen;
  for (int i = 0; i < 8; ++i) {
    y = times(y, ones({n}));  // keeps its factor, and the product before it
    register_hook(y, [&](const Tensor&) {
      seen.push_back(live());
      return Tensor();
    });
  }
  Tensor loss = total(y);
  y = Tensor();
  loss.backward();
  ASSERT_EQ(seen.size(), 8u);
  for (std::size_t i = 2; i < seen.size(); ++i)
    EXPECT_LE(seen[i] + 2 * n * sizeof(float), seen[i - 1]) << "after " << i << " nodes";
}

/// Counts saved tensors.
class CountingPolicy : public SavedTensorPolicy {
 public:
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override {
    uses.push_back(use);
    bytes += tensor.numel() * static_cast<std::int64_t>(size_of(tensor.dtype()));
    ++tensors;
    return nullptr;
  }
  int tensors = 0;
  std::int64_t bytes = 0;
  std::vector<SavedUse> uses;
};

/// Moves saved tensors out of the pool.
class OffloadingPolicy : public SavedTensorPolicy {
 public:
  class Offloaded : public PackedTensor {
   public:
    explicit Offloaded(const Tensor& tensor) : shape_(tensor.shape()), values_(tensor.to_vector<double>()) {}
    Tensor unpack() override { return from_data(values_, shape_); }

   private:
    Shape shape_;
    std::vector<double> values_;
  };
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse&) override {
    return std::make_unique<Offloaded>(tensor);
  }
};

TEST(SavedTensorPolicy, SeesEverySavedTensorOfItsThreadWhileAlive) {
  Tensor x = leaf({1, 2});
  CountingPolicy outer;
  const Tensor square = times(x, x);  // saves x twice
  EXPECT_EQ(outer.tensors, 1);
  EXPECT_EQ(outer.bytes, 16);
  {
    CountingPolicy inner;
    const Tensor power = exponential(x);
    EXPECT_EQ(inner.tensors, 1);
  }
  EXPECT_EQ(outer.tensors, 1);
  const Tensor twice = scaled(x, 2);
  EXPECT_EQ(outer.tensors, 1);
  const Tensor power = exponential(x);
  EXPECT_EQ(outer.tensors, 2);
}

TEST(SavedTensorPolicy, ReceivesTheOperationOfEverySavedTensor) {
  Tensor x = leaf({1, 2}), y = scaled(x, 2);
  CountingPolicy policy;
  const Tensor product = times(x, y), power = exponential(product);
  ASSERT_EQ(policy.uses.size(), 3u);
  EXPECT_EQ(policy.uses[0].operation, "times");
  EXPECT_EQ(policy.uses[2].operation, "exponential");
  EXPECT_EQ(policy.uses[0].is_leaf + policy.uses[1].is_leaf, 1);  // x is a leaf, y is not
  EXPECT_EQ(policy.uses[0].output, -1);
  EXPECT_EQ(policy.uses[2].output, 0);
  EXPECT_FALSE(policy.uses[2].is_leaf);
}

TEST(SavedTensorPolicy, SeesOnlyTensorsSavedByNodes) {
  Tensor x = leaf({1, 2});
  CountingPolicy policy;
  { const SavedTensor kept_by_nobody(x); }
  times(x, x);
  EXPECT_EQ(policy.tensors, 1);
}

TEST(SavedTensorPolicy, PacksAStorageOnceForAllItsNodesAndViews) {
  Tensor x = leaf({1, 2, 3, 4});
  const Tensor doubled = scaled(x, 2), head = slice(doubled, 0, 0, 2), tail = slice(doubled, 0, 2, 4);
  CountingPolicy policy;
  const Tensor first = times(head, tail), second = times(tail, doubled.detach());
  EXPECT_EQ(policy.tensors, 1);
  EXPECT_EQ(policy.bytes, 32);  // the whole storage, though no node keeps more than a half
}

TEST(SavedTensorPolicy, RepacksAWrittenOrReallocatedStorage) {
  Tensor x = leaf({1, 2});
  Tensor weight = from_data<double>({3, 4}, {2});
  CountingPolicy policy;
  const Tensor y = times(weight, x);
  EXPECT_EQ(policy.tensors, 2);
  weight.fill(5.0);
  const Tensor z = times(weight, x);
  EXPECT_EQ(policy.tensors, 3);
  for (int i = 0; i < 1000; ++i) times(ones({2}, {.dtype = DType::f64}), x);
  EXPECT_EQ(policy.tensors, 1003);
}

TEST(SavedTensorPolicy, RestoresViewsAtTheirOffsets) {
  const auto loss = [](const Tensor& x) {
    const Tensor doubled = scaled(x, 2), head = slice(doubled, 0, 0, 2), odd = slice(doubled, 0, 1, 4, 2);
    return total(times(head, odd));
  };
  Tensor x = leaf({1, 2, 3, 4});
  loss(x).backward();
  const Tensor expected = x.grad();
  x.set_grad({});
  const OffloadingPolicy policy;
  loss(x).backward();
  EXPECT_TRUE(bit_equal(x.grad(), expected));
}

TEST(SavedTensorPolicy, DetectsAnInPlaceWriteToAPackedTensor) {
  Tensor x = leaf({1, 2}), weight = from_data<double>({3, 4}, {2});
  Tensor y;
  {
    OffloadingPolicy policy;
    y = total(times(x, weight));
  }
  weight.fill(0.0);
  EXPECT_EQ(message_of([&] { y.backward(); }),
            "[times] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(SavedTensorPolicy, GivesTheSameGradientsWithOffloading) {
  const auto loss = [](const Tensor& x) { return total(times(exponential(times(x, x)), x)); };
  Tensor x = leaf({0.5, -1, 2});
  loss(x).backward();
  const Tensor expected = x.grad();
  x.set_grad({});
  Tensor offloaded;
  {
    OffloadingPolicy policy;
    offloaded = loss(x);
  }
  offloaded.backward();
  EXPECT_TRUE(bit_equal(x.grad(), expected));
}

TEST(SavedTensorPolicy, KeepsOffloadedTensorsInTheGraph) {
  Tensor x = leaf({0.5, -1, 2});
  const auto second = [&x] {
    Tensor first = grad({total(times(exponential(x), times(x, x)))}, {x}, {}, {.create_graph = true})[0];
    return grad({total(first)}, {x})[0];
  };
  const Tensor expected = second();
  OffloadingPolicy policy;
  EXPECT_TRUE(bit_equal(second(), expected));
}

TEST(SavedTensorPolicy, FreesOffloadedMemoryInThePool) {
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  Tensor x = ones({1024}, {.dtype = DType::f64}).set_requires_grad();
  const std::uint64_t before = live();
  OffloadingPolicy policy;
  Tensor y = total(times(times(x, x), x));
  EXPECT_LE(live(), before + 64);
  y.backward();
  EXPECT_THAT(values(x.grad())[5], 3.0);
}

}  // namespace
}  // namespace poolgrad
