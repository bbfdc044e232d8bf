// Tiny transformers against numbers that an independent framework made: see make_golden.py beside the files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "attention/modules/multihead.h"
#include "autograd/operators/views.h"
#include "nn/optimizer.h"
#include "tensor/print.h"
#include "tensor/safetensors.h"

namespace poolgrad {
namespace {

struct Golden {
  const char* file;
  nn::LanguageModelConfig config;
  attention::Pattern pattern;
};

Golden modern(DType dtype) {
  return {"golden_modern.safetensors",
          {.vocabulary = 64,
           .context = 16,
           .layers = 2,
           .width = 32,
           .heads = 2,
           .kv_heads = 1,
           .feed_forward = nn::FeedForwardKind::swiglu,
           .dtype = dtype},
          attention::Pattern::window(5, 0)};
}

Golden classic(DType dtype) {
  return {"golden_classic.safetensors",
          {.vocabulary = 64,
           .context = 16,
           .layers = 2,
           .width = 32,
           .heads = 2,
           .kv_heads = 2,
           .norm = nn::NormKind::layer_norm,
           .positions = nn::Positions::learned,
           .tied_head = true,
           .biases = true,
           .dtype = dtype},
          attention::Pattern::causal()};
}

class GoldenLosses : public ::testing::TestWithParam<const char*> {
 protected:
  static Tensor here(const Tensor& x) {
    return Tensor::empty(x.shape(), {.dtype = x.dtype(), .device = Device::parse(GetParam())}).copy_from(x);
  }
  static void expect_golden(const Golden& golden, double gradient_tolerance, double loss_tolerance);
};

void GoldenLosses::expect_golden(const Golden& golden, double gradient_tolerance, double loss_tolerance) {
  const char* elsewhere = std::getenv("POOLGRAD_GOLDEN");  // of a program that was taken to another machine
  const SafetensorsFile file =
      load_safetensors((elsewhere ? elsewhere : POOLGRAD_GOLDEN_DIR) + std::string("/") + golden.file);
  const DType dtype = golden.config.parameter_dtype();
  const auto model =
      attention::make_language_model(golden.config, golden.pattern, {.device = Device::parse(GetParam())});
  nn::NamedTensors initial;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with("parameter.")) initial.emplace_back(name.substr(10), to(tensor, dtype));
  model->load(initial);

  const auto losses = file.at("losses").to_vector<double>();
  ASSERT_EQ(losses.size(), 10u);
  nn::AdamW optimizer(model->named_parameters(),
                      {.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1});
  for (std::size_t step = 0; step < losses.size(); ++step) {
    model->zero_grad();
    const Tensor loss = model->loss(here(file.at("tokens")), here(file.at("targets")));
    EXPECT_NEAR(loss.item() / losses[step], 1.0, loss_tolerance) << "step " << step;
    loss.backward();
    for (const auto& [name, parameter] : model->named_parameters()) {
      if (step > 0) break;
      EXPECT_LE(relative_error(to(parameter.grad(), DType::f64).on_host(), file.at("gradient." + name)),
                gradient_tolerance)
          << name;
    }
    optimizer.step();
  }
}

TEST_P(GoldenLosses, ModernModelInF64) { expect_golden(modern(DType::f64), 1e-10, 1e-10); }
TEST_P(GoldenLosses, ModernModelInF32) { expect_golden(modern(DType::f32), 1e-5, 1e-4); }
TEST_P(GoldenLosses, ClassicModelInF64) { expect_golden(classic(DType::f64), 1e-10, 1e-10); }
TEST_P(GoldenLosses, ClassicModelInF32) { expect_golden(classic(DType::f32), 1e-5, 1e-4); }

INSTANTIATE_TEST_SUITE_P(On, GoldenLosses, ::testing::Values(POOLGRAD_GOLDEN_DEVICE),
                         [](const auto& device) { return std::string(device.param); });

}  // namespace
}  // namespace poolgrad
