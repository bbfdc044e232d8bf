// Moving averages of parameters: definition, use and file.
#include "nn/ema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using testing_support::error_of;
using testing_support::TemporaryFolder;

/// One parameter, p, that moves by 1 a step.
struct Mover : Module {
  explicit Mover(DType dtype = DType::f64) { p = constant_parameter("p", {2}, 4.0, {.dtype = dtype}); }
  void move() {
    const NoGradGuard no_grad;
    p.copy_from(p + 1.0);
  }
  Tensor p;
};

double average_of(const EMA& ema) { return ema.tensors()[0].second.to_vector<double>()[0]; }

// AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.75)) of PyTorch 2.15 gives the same five averages: 5, 5.25,
// 5.6875, 6.265625, 6.94921875.
TEST(EMA, CopiesTheParametersAtFirstAndThenDecaysTowardsThem) {
  Mover mover;
  EMA ema(mover, {.decay = 0.75});
  EXPECT_EQ(average_of(ema), 4) << "the values at the start";
  double expected = 5;
  for (int i = 1; i <= 5; ++i) {
    mover.move();
    ema.update();
    if (i > 1) expected = 0.75 * expected + 0.25 * (4 + i);
    EXPECT_DOUBLE_EQ(average_of(ema), expected) << i;
  }
  EXPECT_EQ(ema.updates(), 5);
  EXPECT_EQ(mover.p.to_vector<double>()[0], 9) << "the parameters are left alone";
}

TEST(EMA, ForgetsTheStartFasterWithARamp) {
  Mover mover;
  EMA ema(mover, {.decay = 0.5, .ramp = true});
  double expected = 4;
  for (int n = 1; n <= 12; ++n) {
    mover.move();
    ema.update();
    const double decay = std::min(0.5, (1.0 + n) / (10.0 + n));
    expected = decay * expected + (1 - decay) * (4 + n);
    EXPECT_NEAR(average_of(ema), expected, 1e-13) << n;
  }
}

TEST(EMA, ReplacesTheParametersTemporarily) {
  Generator generator(1);
  Linear layer(3, 2, {}, {.generator = &generator});
  const Tensor x = randn({4, 3}, {}, generator), at_first = layer(x).copy();
  EMA ema(layer);
  {
    const NoGradGuard no_grad;
    for (Tensor& parameter : layer.parameters()) parameter.fill(7.0);
  }
  {
    const NoGradGuard no_grad;
    const Substitution averaged(layer, ema.tensors());
    EXPECT_TRUE(bit_equal(layer(x), at_first));
  }
  EXPECT_EQ(layer.weight().to_vector<float>()[0], 7.0f);
  EXPECT_TRUE(layer.weight().requires_grad());
}

TEST(EMA, AccumulatesHalfTypesInF32) {
  Mover mover(DType::bf16);
  EMA ema(mover, {.decay = 0.999});
  ema.update();
  mover.move();
  for (int i = 0; i < 100; ++i) ema.update();
  const double expected = 5 - std::pow(0.999, 100);        // steps of 1/1000 are lost in bf16
  const double rounding = 100 * 2 * std::ldexp(1.0, -22);  // of each update twice, by half an ulp of 4
  EXPECT_NEAR(ema.state()[0].second.to_vector<double>()[0], expected, rounding);
  EXPECT_EQ(ema.tensors()[0].second.dtype(), DType::bf16);
  const Substitution averaged(mover, ema.tensors());
  EXPECT_EQ(mover.p.dtype(), DType::bf16);
}

TEST(EMA, ResumesFromAFileBitForBit) {
  const TemporaryFolder folder;
  Mover mover, same;
  EMA whole(mover), resumed(same);
  for (int i = 0; i < 3; ++i) mover.move(), whole.update();
  save_safetensors(folder.file("ema"), {whole.state(), {}});
  resumed.load(load_safetensors(folder.file("ema")).tensors);
  EXPECT_EQ(resumed.updates(), 3);
  same.load(mover.named_parameters());
  mover.move(), whole.update();
  same.move(), resumed.update();
  EXPECT_TRUE(bit_equal(whole.tensors()[0].second, resumed.tensors()[0].second));
}

TEST(EMA, LoadsAModelsOwnParametersInGradMode) {
  Mover mover, other;
  other.move();
  EMA ema(mover);
  ema.load({{"p", other.p}, {"updates", full({}, 2, {.dtype = DType::i64})}});
  EXPECT_EQ(average_of(ema), 5);
  EXPECT_EQ(ema.updates(), 2);
}

TEST(EMA, IsTaggedAsOptimizerState) {
  const auto tagged = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::optimizer_state)].current;
  };
  Mover mover;
  const auto before = tagged();
  const EMA ema(mover);
  EXPECT_EQ(tagged() - before, 2 * sizeof(double));
}

TEST(EMA, RefusesABadStateWithoutChanges) {
  EXPECT_EQ(error_of<ValueError>([] { EMA(Mover(), {.decay = 1}); }),
            "[ema] the decay must be in [0, 1), but is 1.000000");
  Mover mover;
  EMA ema(mover);
  NamedTensors state = ema.state();
  state.pop_back();
  EXPECT_EQ(error_of<ValueError>([&] { ema.load(state); }), "[ema] the state has no updates");
  state.emplace_back("updates", full({}, -1, {.dtype = DType::i64}));
  EXPECT_EQ(error_of<ValueError>([&] { ema.load(state); }),
            "[ema] the number of updates must be from 0 to 2^53, but is -1");
  state.back().second = zeros({}, {.dtype = DType::i64});
  state[0].second = ones({3}, {.dtype = DType::f64});
  EXPECT_EQ(error_of<ValueError>([&] { ema.load(state); }),
            "[ema] the state does not fit: p (3,) f64 on cpu, here (2,) f64 on cpu");
  state[0].second = ones({2}, {.dtype = DType::f64});
  state.emplace_back("q", ones({1}));
  EXPECT_EQ(error_of<ValueError>([&] { ema.load(state); }), "[ema] the state has 3 tensors, and 2 are needed");
  state.pop_back();
  state[0].second = Tensor();
  EXPECT_EQ(error_of<ValueError>([&] { ema.load(state); }),
            "[ema] the state does not fit: p undefined, here (2,) f64 on cpu");
  EXPECT_EQ(average_of(ema), 4);
  for (const std::int64_t size : {1, 3}) {
    const Tensor other = ones({size}, {.dtype = DType::f64});
    swap_tensors(mover.p, other);
    EXPECT_EQ(error_of<ShapeError>([&] { ema.update(); }),
              "[ema] p was given another shape since its average began: average (2,) f64 on cpu, parameter " +
                  describe(mover.p));
    swap_tensors(mover.p, other);
  }
  to(mover, DType::f32);
  EXPECT_EQ(error_of<DTypeError>([&] { ema.update(); }),
            "[ema] p was moved or cast since its average began: average (2,) f64 on cpu, parameter (2,) f32 on cpu");
  to(mover, DType::f64);
  ema.update();
  EXPECT_EQ(ema.updates(), 1);
  to(mover, DType::f32);
  EMA single(mover);
  to(mover, DType::bf16);
  EXPECT_EQ(error_of<DTypeError>([&] { single.update(); }),
            "[ema] p was moved or cast since its average began: average (2,) f32 on cpu, parameter (2,) bf16 on cpu");
  EXPECT_EQ(single.updates(), 0);
}

TEST(EMA, RefusesAParameterNamedUpdates) {
  struct Named : Module {
    Named() { constant_parameter("updates", {2}, 1.0, {}); }
  } named;
  EXPECT_EQ(
      error_of<ValueError>([&] { EMA{named}; }),
      "[ema] a parameter has the name that the state reserves for its number of updates: updates (2,) f32 on cpu");
}

}  // namespace
}  // namespace poolgrad::nn
