// Optimizers on cuda:0, the emulated device, take the steps of the CPU: those of one kernel bit for bit.
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "nn/optimizer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"

namespace poolgrad::nn {
namespace {

constexpr Device emulated{DeviceType::cuda, 0};

/// Tables with lookup, product and dropout: every gradient has the bits of the CPU.
struct Tables {
  Tables(DType dtype, Device device) {
    Generator start(11);
    for (const Shape& shape : {Shape{40, 24}, Shape{40, 24}, Shape{1025}, Shape{7, 9}, Shape{1}}) {
      Tensor x = Tensor::empty(shape, {dtype, device});
      x.copy_from(randn(shape, {dtype}, start));
      parameters.emplace_back("p" + std::to_string(parameters.size()), x.set_requires_grad());
    }
    for (int i = 0; i < 3; ++i) {
      Tensor at = Tensor::empty({6, 50}, {DType::i64, device});
      at.copy_from(randint(0, 40, {6, 50}, {DType::i64}, start));
      lookups.push_back(at);
    }
  }
  void backward(std::size_t step) {
    const auto& at = lookups[step % lookups.size()];
    const Tensor rows = embedding(parameters[0].second, at) * embedding(parameters[1].second, at);
    const Tensor out = dropout(rows, 0.25, generator);
    out.backward(out.detach());
    for (std::size_t i = 2; i < parameters.size(); ++i) {
      if (i == 3 && step % 2) continue;  // sometimes a parameter has no gradient
      const Tensor& p = parameters[i].second;
      const Tensor y = p * p;
      y.backward(y.detach());
    }
  }
  NamedTensors parameters;
  std::vector<Tensor> lookups;
  Generator generator{3};
};

template <class Optimizer, class Options>
void expect_the_run_of_the_cpu(const Options& options) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Tables here(dtype, cpu), there(dtype, emulated);
    Optimizer own(here.parameters, options), other(there.parameters, options);
    for (std::size_t step = 0; step < 20; ++step) {
      here.backward(step);
      there.backward(step);
      own.step(0.5);
      other.step(0.5);
      own.zero_grad();
      other.zero_grad();
    }
    for (std::size_t i = 0; i < here.parameters.size(); ++i)
      EXPECT_TRUE(bit_equal(there.parameters[i].second.detach(), here.parameters[i].second.detach()))
          << to_string(dtype) << ", " << here.parameters[i].first;
    for (std::size_t i = 0; i < own.state().size(); ++i)
      EXPECT_TRUE(bit_equal(other.state()[i].second, own.state()[i].second))
          << to_string(dtype) << ", " << own.state()[i].first;
    EXPECT_EQ(other.parameter_steps(), own.parameter_steps());
  }
}

TEST(CudaAdamW, MatchesTwentyStepsOfTheCpu) {
  expect_the_run_of_the_cpu<AdamW>(AdamWOptions{.learning_rate = 0.01, .decay_matrices_only = true});
}

TEST(CudaAdam, MatchesTwentyStepsOfTheCpu) {
  expect_the_run_of_the_cpu<Adam>(AdamOptions{.learning_rate = 0.01, .weight_decay = 0.1, .amsgrad = true});
}

TEST(CudaRMSprop, MatchesTwentyStepsOfTheCpu) {
  expect_the_run_of_the_cpu<RMSprop>(RMSpropOptions{.weight_decay = 0.1});
  expect_the_run_of_the_cpu<RMSprop>(RMSpropOptions{.epsilon = 0.1, .momentum = 0.9, .centered = true});
}

/// The optimizer consists of several kernels, which round products and sums in another order than the CPU.
template <class Optimizer, class Options>
void expect_a_step_of_the_cpu(const Options& options) {
  Tables here(DType::f64, cpu), there(DType::f64, emulated);
  Optimizer own(here.parameters, options), other(there.parameters, options);
  here.backward(0), there.backward(0);
  own.step(0.5), other.step(0.5);
  const auto expect_near = [](const NamedTensors& found, const NamedTensors& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(allclose(to(found[i].second.detach(), cpu), expected[i].second.detach(), 1e-12, 1e-12))
          << expected[i].first;
  };
  expect_near(there.parameters, here.parameters);
  expect_near(other.state(), own.state());
}

TEST(CudaAdafactor, MatchesAStepOfTheCpu) { expect_a_step_of_the_cpu<Adafactor>(AdafactorOptions{}); }

TEST(CudaLion, MatchesAStepOfTheCpu) {
  expect_a_step_of_the_cpu<Lion>(LionOptions{.learning_rate = 0.01, .decay_matrices_only = true});
}

TEST(CudaMuon, MatchesAStepOfTheCpu) { expect_a_step_of_the_cpu<Muon>(MuonOptions{}); }

TEST(CudaSgd, MatchesTwentyStepsOfTheCpu) {
  expect_the_run_of_the_cpu<SGD>(SGDOptions{.learning_rate = 0.01});
  expect_the_run_of_the_cpu<SGD>(SGDOptions{.learning_rate = 0.01, .momentum = 0.9, .nesterov = true});
}

}  // namespace
}  // namespace poolgrad::nn
