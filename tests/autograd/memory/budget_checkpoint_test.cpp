// checkpoint() and checkpoint_tiled() within a memory budget: tensors from their second runs can be dropped too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/engine/node.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/memory/checkpoint_tiled.h"
#include "autograd/memory/memory_budget.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/autograd/local_operators.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using local::message_of;
using ::testing::HasSubstr;
using Layer = std::function<Tensor(const Tensor&)>;
using Wrap = std::function<Tensor(const Layer&, const Tensor&)>;

Tensor as_it_is(const Layer& layer, const Tensor& x) { return layer(x); }
Tensor checkpointed(const Layer& layer, const Tensor& x) { return checkpoint(layer, x); }
Tensor in_tiles(const Layer& layer, const Tensor& x) { return checkpoint_tiled(layer, x, 0, 256); }

void expect_the_bits(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(bit_equal(found[i], expected[i])) << "gradient " << i;
}

/// Residual blocks whose intermediates are far larger than their parameters.
class Stack {
 public:
  explicit Stack(int depth) {
    Generator generator(11);
    x_ = randn({1024, width}, {}, generator);
    for (int i = 0; i < depth; ++i) {
      parameters_.push_back(ones({width}));
      parameters_.push_back(randn({4 * width, width}, {}, generator) * 0.1);
      parameters_.push_back(randn({width, 4 * width}, {}, generator) * 0.1);
    }
    for (Tensor& parameter : parameters_) parameter = parameter.detach().set_requires_grad();
  }

  std::vector<Tensor> gradients(const Wrap& wrap) {
    Generator masks(7);
    Tensor x = x_;
    for (std::size_t i = 0; i < parameters_.size(); i += 3)
      x = wrap(
          [&, i](const Tensor& h) {
            const Tensor hidden = gelu(linear(rms_norm(h, parameters_[i]), parameters_[i + 1]));
            return h + dropout(linear(hidden, parameters_[i + 2]), 0.1, masks);
          },
          x);
    const Tensor loss = mean(square(x));
    x = {};
    return grad({loss}, parameters_);
  }

 private:
  static constexpr std::int64_t width = 32;
  Tensor x_;
  std::vector<Tensor> parameters_;
};

/// The smallest budget that gives these bits, to 8 KiB, in bytes beyond the memory reserved before.
std::size_t least_budget(Stack& blocks, const Wrap& wrap, const std::vector<Tensor>& expected) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.trim();
  const std::size_t standing = pool.statistics().reserved_bytes.current;
  std::size_t less = 0, enough = 16_MiB;
  while (enough - less > 8_KiB) {
    const std::size_t middle = less + (enough - less) / 2;
    pool.trim();
    const MemoryBudget budget(standing + middle);
    try {
      expect_the_bits(blocks.gradients(wrap), expected);
      enough = middle;
    } catch (const OutOfMemoryError&) {
      less = middle;
    }
  }
  return enough;
}

TEST(CheckpointUnderBudget, NeedsNoMoreThanWithoutCheckpoints) {
  Stack blocks(6);
  const std::vector<Tensor> expected = blocks.gradients(as_it_is);
  EXPECT_LE(least_budget(blocks, checkpointed, expected), least_budget(blocks, as_it_is, expected));
  const Wrap nested = [](const Layer& layer, const Tensor& x) {
    return checkpoint([layer](const Tensor& h) { return checkpoint(layer, tanh(h)) + h; }, x);
  };
  const Wrap plain = [](const Layer& layer, const Tensor& x) { return layer(tanh(x)) + x; };
  const std::vector<Tensor> of_nested = blocks.gradients(plain);
  EXPECT_LE(least_budget(blocks, nested, of_nested), least_budget(blocks, plain, of_nested));
}

TEST(CheckpointUnderBudget, DropsRecomputedTensors) {
  Stack blocks(1);
  CachingAllocator& pool = allocator_for(cpu);
  for (const Wrap& wrap : {Wrap(checkpointed), Wrap(in_tiles)}) {
    const std::vector<Tensor> expected = blocks.gradients(wrap);
    pool.trim();
    const std::size_t standing = pool.statistics().reserved_bytes.current;
    std::uint64_t dropped = 0;
    for (std::size_t more = 4_MiB; more > 0; more -= 128_KiB) {
      pool.trim();
      const MemoryBudget budget(standing + more);
      try {
        expect_the_bits(blocks.gradients(wrap), expected);
      } catch (const OutOfMemoryError&) {
        break;
      }
      EXPECT_EQ(budget.statistics().held_bytes, 0u);
      dropped = budget.statistics().dropped;
    }
    EXPECT_GT(dropped, 0u);
  }
}

TEST(CheckpointUnderBudget, RerunsTheFunctionForADroppedResult) {
  const Rematerialisation policy;
  const Tensor x = full({8}, 0.5).set_requires_grad();
  int calls = 0;
  Tensor other;
  const auto gradient = [&] {
    calls = 0;
    const Layer layer = [&](const Tensor& h) {
      ++calls;
      return other.defined() ? sin(tanh(h)) : exp(tanh(h));
    };
    const Tensor loss = sum(square(checkpoint(layer, x)));
    policy.client()->reclaim(SIZE_MAX);
    EXPECT_EQ(policy.statistics().held_bytes, 0u) << "the result, too";
    return [&, loss] { return grad({loss}, {x})[0]; };
  };
  const Tensor y = exp(tanh(x));
  const Tensor expected = grad({sum(square(y))}, {x})[0];
  EXPECT_TRUE(bit_equal(gradient()(), expected));
  EXPECT_EQ(calls, 3) << "forward, once for its result, once for what its nodes saved";
  const auto late = gradient();
  other = x;
  EXPECT_THAT(
      message_of([&] { late(); }),
      HasSubstr("the second run of the function differs from the first: operation 1 was exp (8,) f32 on cpu, now sin"));
}

TEST(CheckpointUnderBudget, DoesNotRecurseOverALongChain) {
  const Rematerialisation policy;
  const Tensor x = full({4}, 0.5).set_requires_grad();
  const Layer layer = [](const Tensor& h) { return tanh(h) * 0.9; };
  const auto gradient = [&](const Wrap& wrap) {
    Tensor y = x;
    for (int i = 0; i < 5000; ++i) y = wrap(layer, y);
    policy.client()->reclaim(SIZE_MAX);
    return grad({sum(y)}, {x})[0];
  };
  const Tensor expected = gradient(as_it_is);
  EXPECT_TRUE(bit_equal(gradient(checkpointed), expected));
  EXPECT_EQ(policy.statistics().held_bytes, 0u);
}

/// Random operators and nested functions of any depth, some with gradients of their own results. The same seed gives
/// the same program. Calls `squeeze` at random places, in each run and in the backward.
class Program {
 public:
  Program(Wrap wrap, std::function<void()> squeeze) : wrap_(std::move(wrap)), squeeze_(std::move(squeeze)) {}

  std::vector<Tensor> gradients(std::uint64_t seed) {
    masks_.set_seed(seed);
    Generator generator(seed);
    leaves_.clear();
    for (int i = 0; i < 3; ++i) leaves_.push_back((randn({6, 6}, {}, generator) * 0.5).detach().set_requires_grad());
    const Tensor loss = mean(square(function(seed, 0, leaves_[0])));
    std::vector<Tensor> found = grad({loss}, leaves_, {}, {}, true);
    for (std::size_t i = 0; i < found.size(); ++i)
      if (!found[i].defined()) found[i] = zeros_like(leaves_[i]);
    found.push_back(loss.detach());
    return found;
  }

 private:
  Tensor function(std::uint64_t seed, int depth, const Tensor& x) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<Tensor> values{x, leaves_[1], leaves_[2]};
    for (std::size_t i = 0; i < 8; ++i) {
      const Tensor a = values[below(values.size())], b = values[below(values.size())];
      const std::uint64_t seed_inside = random();
      Tensor made;
      switch (below(10)) {
        case 0: made = tanh(a + b); break;
        case 1: made = tanh(a) * sigmoid(b); break;
        case 2: made = matmul(a, b) * 0.3; break;
        case 3: made = softmax(a) + a; break;
        case 4: made = dropout(a, 0.2, masks_) + b; break;
        case 5: made = embedding(rms_norm(a, {}), rows_); break;  // its recipe holds a tensor that it saved
        case 6:
          if (depth < 2) {
            const Tensor slope = grad({sum(tanh(a) * a)}, {a}, {}, {.create_graph = true}, true)[0];
            made = slope.defined() ? slope * 0.5 + b : b;
            break;
          }
          [[fallthrough]];
        default:
          made = depth == 3 ? gelu(a) * 0.5 + b
                            : wrap_([=, this](const Tensor& h) { return function(seed_inside, depth + 1, h) + b; }, a);
      }
      if (below(3) == 0) squeeze_();
      if (made.requires_grad() && !made.is_leaf() && below(3) == 0)
        register_hook(made, [this](const Tensor& gradient) {
          squeeze_();
          return gradient;
        });
      values.push_back(made);
    }
    return values.back() * 0.5 + values[below(values.size())];
  }

  const Wrap wrap_;
  const std::function<void()> squeeze_;
  Generator masks_{1};
  std::vector<Tensor> leaves_;
  const Tensor rows_ = from_data<std::int64_t>({5, 0, 0, 3, 1, 2}, {6});
};

TEST(CheckpointUnderBudget, GivesTheSameBitsUnderRandomDrops) {
  std::mt19937_64 random(test_seed());
  const std::int64_t nodes = live_node_count();
  std::uint64_t dropped = 0;
  for (int round = 0; round < 60; ++round) {
    const std::uint64_t seed = random();
    SCOPED_TRACE("program " + std::to_string(seed));
    const std::vector<Tensor> expected = Program(as_it_is, [] {}).gradients(seed);
    const Rematerialisation policy({.drop_below = round % 3 == 0 ? 0.5 : 0.0});
    const auto squeeze = [&] { policy.client()->reclaim(random() % 2 == 0 ? SIZE_MAX : 1 + random() % 1000); };
    expect_the_bits(Program(checkpointed, squeeze).gradients(seed), expected);
    EXPECT_EQ(policy.statistics().held_bytes, 0u);
    dropped += policy.statistics().dropped;
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(live_node_count(), nodes);
}

}  // namespace
}  // namespace poolgrad
