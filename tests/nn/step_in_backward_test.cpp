// An optimizer's step as part of the backward pass: each parameter is updated and its gradient dropped once the
// gradient is complete. So at most one gradient exists at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "nn/checkpoint_sequential.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "tensor/creation.h"
#include "tensor/print.h"

namespace poolgrad::nn {
namespace {

constexpr std::int64_t wide = 96;

/// Eight layers, so that parameters take most of the memory.
struct Deep {
  Deep() {
    for (int i = 0; i < 8; ++i) {
      network.add(std::make_unique<Linear>(wide, wide, LinearOptions{}, ParameterOptions{.generator = &generator}));
      network.add([](const Tensor& x) { return tanh(x); });
    }
  }
  Tensor loss(Checkpointing policy = {}) { return sum(square(checkpoint_sequential(network.layers(), input, policy))); }
  Generator generator{3};
  Sequential network;
  Tensor input = randn({2, wide}, {}, generator);
};

std::unique_ptr<Optimizer> adamw(const NamedTensors& parameters) {
  return std::make_unique<AdamW>(parameters, AdamWOptions{.learning_rate = 0.01});
}

/// Returns the peak of live bytes during `action`, above those before.
std::size_t peak_of(const std::function<void()>& action) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const auto before = pool.statistics().requested_bytes.current;
  action();
  return pool.statistics().requested_bytes.peak - before;
}

TEST(StepInBackward, GivesTheBitsOfPlainStepsInLessMemory) {
  for (const char* policy : {"none", "block"}) {
    Deep plain, fused;
    const auto whole = adamw(plain.network.named_parameters());
    std::vector<std::unique_ptr<Optimizer>> parts;
    for (const auto& [name, parameter] : fused.network.named_parameters()) {
      parts.push_back(adamw({{name, parameter}}));
      register_post_accumulate_hook(parameter, [part = parts.back().get()](const Tensor&) {
        part->step();
        part->zero_grad();
      });
    }
    std::size_t plain_peak = 0, fused_peak = 0;
    for (int step = 0; step < 3; ++step) {
      plain_peak = peak_of([&] {
        plain.loss(Checkpointing::parse(policy)).backward();
        whole->step();
        whole->zero_grad();
      });
      fused_peak = peak_of([&] { fused.loss(Checkpointing::parse(policy)).backward(); });
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_TRUE(bit_equal(plain.network.parameters()[i], fused.network.parameters()[i])) << policy << " " << i;
        EXPECT_FALSE(fused.network.parameters()[i].grad().defined());
      }
    }
    constexpr std::size_t weight = wide * wide * sizeof(float);
    EXPECT_GE(plain_peak, 8 * weight) << "all gradients at once";
    EXPECT_LT(fused_peak, 3 * weight) << "one, and what the step needs";
  }
}

}  // namespace
}  // namespace poolgrad::nn
