// A training step without products, and one of a perceptron, on cuda:0, the emulated device. Results are compared with
// the CPU's, and requests to the pool with those of the simulated device that models a GPU.
#include <gtest/gtest.h>

#include <optional>
#include <type_traits>

#include "allocator/caching_allocator.h"
#include "allocator/memory/simulated_memory.h"
#include "autograd/autocast.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/loss_scaler.h"
#include "nn/module.h"
#include "nn/optimizer.h"
#include "nn/training/trainer.h"
#include "tensor/creation.h"
#include "tests/emulation/device.h"

namespace poolgrad::nn {
namespace {

constexpr std::int64_t batch = 3, length = 41, width = 64;

/// Maps bytes to logits without a matrix product.
class WithoutProducts : public Module {
 public:
  WithoutProducts(Generator& generator, Device device)
      : table_(normal_parameter("table", {width, width}, 1.0, {.device = device, .generator = &generator})),
        gate_(constant_parameter("gate", {width}, 0.9, {.device = device})),
        scale_(constant_parameter("scale", {width}, 1.0, {.device = device})),
        shift_(constant_parameter("shift", {width}, 0.0, {.device = device})) {}

  Tensor loss(const Tensor& tokens, const Tensor& targets) const {
    Tensor x = rms_norm(embedding(table_, tokens), scale_);
    x = x + dropout(gelu(x * gate_), 0.1, generator_);
    x = reshape(rope(reshape(x, {batch, length, 4, width / 4})), {batch, length, width});
    return cross_entropy(layer_norm(x, scale_, shift_), targets, {.reduction = Reduction::sum});
  }

 private:
  Tensor table_, gate_, scale_, shift_;
  mutable Generator generator_{5};
};

/// Lookup, linear, gelu, linear: 300 hidden features, so that products have a workspace.
class Perceptron : public Module {
 public:
  Perceptron(Generator& generator, Device device)
      : table_(normal_parameter("table", {width, 48}, 1.0, {.device = device, .generator = &generator})),
        up_(48, 300, {}, {.device = device, .generator = &generator}),
        down_(300, width, {}, {.device = device, .generator = &generator}) {
    add_module("up", up_);
    add_module("down", down_);
  }

  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    const Tensor hidden = gelu(up_.forward(embedding(table_, tokens)));
    return cross_entropy(down_.forward(hidden), targets, {.reduction = Reduction::sum});
  }

 private:
  Tensor table_;
  Linear up_, down_;
};

/// The same with its products in f16, and a scaled loss.
class HalfPerceptron : public Perceptron {
 public:
  using Perceptron::Perceptron;
  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    const AutocastScope scope(DType::f16);
    return Perceptron::loss(tokens, targets);
  }
};

struct Training {
  std::vector<StepRecord> steps;
  std::uint64_t hash, peak, reserved;
};

template <class Model>
Training run_on(Device device) {
  CachingAllocator& pool = allocator_for(device);
  pool.trim();
  pool.reset_peaks();
  pool.reset_sequence_hash();
  const std::uint64_t before = pool.statistics().allocated_bytes.current;
  Training run;
  {
    Generator generator(11), text(12);
    Model model(generator, device);
    AdamW optimizer(model.named_parameters(), {});
    std::optional<LossScaler> scaler;
    if constexpr (std::is_same_v<Model, HalfPerceptron>) scaler.emplace(device);
    TrainingStep step(model, optimizer, 1.0, "train", scaler ? &*scaler : nullptr);
    for (int i = 0; i < 4; ++i) {
      Tensor tokens = Tensor::empty({batch, length}, {DType::i64, device}), targets = Tensor::empty_like(tokens);
      tokens.copy_from(randint(0, width, {batch, length}, {DType::i64}, text));
      targets.copy_from(randint(0, width, {batch, length}, {DType::i64}, text));
      run.steps.push_back(step.run(0.01, batch * length, [&] { return model.loss(tokens, targets); }));
    }
  }
  const Statistics statistics = pool.statistics();
  run.hash = pool.sequence_hash();
  run.peak = statistics.allocated_bytes.peak - before;
  run.reserved = statistics.reserved_bytes.peak;
  return run;
}

template <class Model>
class CudaStep : public ::testing::Test {};
using Models = ::testing::Types<WithoutProducts, Perceptron, HalfPerceptron>;
TYPED_TEST_SUITE(CudaStep, Models);

TYPED_TEST(CudaStep, MatchesTheStepsOfTheCpu) {
  const Training there = run_on<TypeParam>({DeviceType::cuda, 0}), here = run_on<TypeParam>(cpu);
  constexpr double rounding = std::is_same_v<TypeParam, HalfPerceptron> ? 100 : 1;  // of sums, to f16
  for (std::size_t i = 0; i < here.steps.size(); ++i) {
    EXPECT_NEAR(there.steps[i].loss, here.steps[i].loss, 1e-5 * rounding) << "step " << i;
    EXPECT_NEAR(there.steps[i].gradient_norm, here.steps[i].gradient_norm, 1e-4 * rounding) << "step " << i;
  }
}

TYPED_TEST(CudaStep, ReadsFromTheDeviceOnce) {
  const std::uint64_t before = emulation::device(0).copies_to_host();
  const std::size_t steps = run_on<TypeParam>({DeviceType::cuda, 0}).steps.size();
  EXPECT_EQ(emulation::device(0).copies_to_host() - before, steps);
}

TYPED_TEST(CudaStep, MakesTheSameRequestsAsASimulatedGpu) {
  constexpr int index = 77;
  configure_simulated_device(index, std::size_t{4} << 30);
  const Training sim = run_on<TypeParam>({DeviceType::sim, index}), gpu = run_on<TypeParam>({DeviceType::cuda, 0});
  EXPECT_EQ(sim.hash, gpu.hash);
  EXPECT_EQ(sim.peak, gpu.peak);
  EXPECT_EQ(sim.reserved, gpu.reserved);
}

}  // namespace
}  // namespace poolgrad::nn
