// The recurrent mixer: its definition, states, chunks, memory policies and models that mix it with attention.
#include "attention/modules/delta_mixer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attention/modules/multihead.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/attention/modules/model_passes.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;

constexpr std::int64_t mixer_width = 12, mixer_heads = 3;

DeltaMixerOptions small_mixer(bool delta) { return {.delta = delta, .chunk = 8, .output_deviation = -1.0}; }

Tensor sequences(std::int64_t length, Generator& generator, DType dtype = DType::f64) {
  return randn({2, length, mixer_width}, {.dtype = dtype}, generator);
}

/// The operators of the mixer, each by its simplest definition.
Tensor mixer_by_definition(const nn::Module& module, const Tensor& x, bool delta) {
  const nn::NamedTensors all = module.named_parameters();
  const auto weight = [&](const std::string& name) { return *nn::entry_of(all, name); };
  const Shape rows{x.size(0), x.size(1), mixer_heads, mixer_width / mixer_heads};
  Tensor packed = pad(matmul(x, transpose(weight("projection.weight"), 0, 1)), 1, 3, 0), mixed;
  for (std::int64_t i = 0; i < 4; ++i) {
    const Tensor tap = slice(packed, 1, i, i + x.size(1)) * select(weight("convolution"), 1, i);
    mixed = i == 0 ? tap : mixed + tap;
  }
  mixed = silu(mixed);
  const auto unit = [](const Tensor& t) { return t / sqrt(sum(square(t), {-1}, Keep(true)) + 1e-6 * t.size(-1)); };
  const Tensor q = unit(reshape(slice(mixed, 2, 0, mixer_width), rows)) * 0.5,  // 1 / sqrt(4)
      k = unit(reshape(slice(mixed, 2, mixer_width, 2 * mixer_width), rows)),
               v = reshape(slice(mixed, 2, 2 * mixer_width), rows);
  const Tensor gates = matmul(x, transpose(weight("gates.weight"), 0, 1));
  const Tensor beta = sigmoid(slice(gates, 2, 0, mixer_heads)),
               decay = exp(-softplus(slice(gates, 2, mixer_heads) + weight("decay_bias")));
  Tensor state = zeros({x.size(0), mixer_heads, 4, 4}, x.options());
  std::vector<Tensor> out;
  const auto cell = [](const Tensor& number) { return unsqueeze(unsqueeze(number, -1), -1); };
  for (std::int64_t t = 0; t < x.size(1); ++t) {
    const Tensor key = unsqueeze(select(k, 1, t), -1);
    state = state * cell(select(decay, 1, t));
    Tensor u = unsqueeze(select(v, 1, t), -2);
    if (delta) u = u - matmul(transpose(key, -1, -2), state);
    state = state + matmul(key, u * cell(select(beta, 1, t)));
    out.push_back(squeeze(matmul(unsqueeze(select(q, 1, t), -2), state), -2));
  }
  const Tensor normed = rms_norm(stack(out, 1), weight("norm.weight"));
  return matmul(flatten(normed, 2, 3), transpose(weight("output.weight"), 0, 1));
}

TEST(DeltaMixer, IsItsOperatorsPositionByPosition) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  for (const bool delta : {true, false}) {
    DeltaMixer mixer(mixer_width, mixer_heads, small_mixer(delta), {.dtype = DType::f64, .generator = &generator});
    for (const std::int64_t length : {1, 8, 21}) {
      const Tensor x = sequences(length, generator);
      EXPECT_TRUE(allclose(mixer(x), mixer_by_definition(mixer, x, delta), 1e-11, 1e-11)) << length << " seed " << seed;
    }
  }
}

TEST(DeltaMixer, PassesGradcheckByItsInputAndAllParameters) {
  Generator generator(test_seed());
  for (const bool delta : {true, false}) {
    DeltaMixer mixer(mixer_width, mixer_heads, small_mixer(delta), {.dtype = DType::f64, .generator = &generator});
    const Tensor x = sequences(10, generator).set_requires_grad();
    EXPECT_TRUE(gradcheck(mixer, [&](const std::vector<Tensor>& in) { return std::vector{mixer(in[0])}; }, {x}));
  }
}

TEST(DeltaMixer, WritesTheSameOneByOneWithAStateOfConstantSize) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const NoGradGuard guard;
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 2e-5}}) {
    DeltaMixer mixer(mixer_width, mixer_heads, small_mixer(true), {.dtype = dtype, .generator = &generator});
    const Tensor x = sequences(30, generator, dtype), whole = mixer(x);
    nn::SequenceState state;
    std::vector<Tensor> pieces;
    for (const auto& [begin, end] : {std::pair{0, 2}, {2, 3}, {3, 20}, {20, 21}, {21, 22}, {22, 30}}) {
      pieces.push_back(mixer(slice(x, 1, begin, end), &state));
      EXPECT_EQ(state.length, end);
      EXPECT_EQ(state.tensors[0].shape(), (Shape{2, 3, 3 * mixer_width}));
      EXPECT_EQ(state.tensors[1].shape(), (Shape{2, mixer_heads, 4, 4}));
      EXPECT_TRUE(state.tensors[0].is_sole_owner()) << "a view would keep the chunk";
    }
    EXPECT_TRUE(allclose(cat(pieces, 1), whole, tolerance, tolerance)) << to_string(dtype) << " seed " << seed;
  }
}

TEST(DeltaMixer, KeepsItsStateInF32ForHalfTypes) {
  Generator generator(test_seed());
  DeltaMixer mixer(mixer_width, mixer_heads, small_mixer(true), {.generator = &generator});
  nn::SequenceState state;
  const Tensor out = mixer(sequences(9, generator, DType::bf16), &state);
  EXPECT_EQ(out.dtype(), DType::bf16);
  EXPECT_EQ(state.tensors[1].dtype(), DType::f32);
}

TEST(DeltaMixer, RefusesBadArgumentsInOneSentence) {
  EXPECT_EQ(
      error_of<ValueError>([] { DeltaMixer(mixer_width, 5); }),
      "[delta_mixer] sizes must be at least 1 and heads divide width: width 12, heads 5, chunk 64, convolution 4");
  DeltaMixer mixer(mixer_width, mixer_heads);
  EXPECT_EQ(error_of<ShapeError>([&] {
              mixer(ones({2, 3, 8}));
            }),
            "[delta_mixer] x must be (B, T, 12): x (2, 3, 8) f32 on cpu");
}

/// Three recurrent layers and a causal one without positions.
std::unique_ptr<nn::LanguageModel> mixed_model(Generator& generator) {
  std::vector<MixerSpec> layers(4);
  for (int i = 0; i < 3; ++i) layers[static_cast<std::size_t>(i)].recurrent = small_mixer(i != 1);
  layers[3].positions = false;
  layers[3].multihead.output_deviation = -1.0;
  const nn::LanguageModelConfig config{
      .vocabulary = 11, .context = 40, .layers = 4, .width = mixer_width, .heads = mixer_heads, .dtype = DType::f64};
  auto model = std::make_unique<nn::LanguageModel>(config, attention_mixer(layers),
                                                   nn::ParameterOptions{.generator = &generator});
  testing_support::disturb_parameters(*model, generator);
  return model;
}

TEST(DeltaMixer, GivesAModelTheSameLossInChunksAndUnderCheckpoints) {
  Generator generator(test_seed());
  testing_support::expect_same_loss_in_chunks_and_under_checkpoints(*mixed_model(generator), generator);
}

TEST(DeltaMixer, LooksAtNoLaterPosition) {
  Generator generator(test_seed());
  DeltaMixer mixer(mixer_width, mixer_heads, small_mixer(true), {.dtype = DType::f64, .generator = &generator});
  const Tensor x = sequences(20, generator), other = cat({slice(x, 1, 0, 11), sequences(9, generator)}, 1);
  EXPECT_TRUE(bit_equal(slice(mixer(x), 1, 0, 11), slice(mixer(other), 1, 0, 11)));
  EXPECT_FALSE(mixer.looks_ahead());
  EXPECT_TRUE(mixer.continues());
}

}  // namespace
}  // namespace poolgrad::attention
