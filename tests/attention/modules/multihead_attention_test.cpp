#include "attention/modules/multihead_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/definition.h"
#include "attention/modules/language_model.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/attention/attend_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

Tensor input(std::int64_t length, std::int64_t width, DType dtype = DType::f64) {
  Generator generator(8);
  return randn({2, length, width}, {.dtype = dtype}, generator);
}

TEST(MultiheadAttention, IsProjectionRotationAttentionProjection) {
  Generator generator(2);
  for (const bool rotates : {true, false}) {
    MultiheadAttentionOptions options{.heads = 4, .kv_heads = 2, .pattern = Pattern::window(3, 0), .bias = true};
    if (!rotates) options.rope_base.reset();
    MultiheadAttention layer(16, options, {.dtype = DType::f64, .generator = &generator});
    const auto parameters = layer.named_parameters();
    const Tensor x = input(9, 16);
    const Tensor packed = reshape(linear(x, parameters[0].second, parameters[1].second), {2, 9, 8, 4});
    Tensor q = slice(packed, 2, 0, 4), k = slice(packed, 2, 4, 6);
    if (rotates) {
      q = rope(q);
      k = rope(k);
    }
    const Tensor mixed = attend_by_definition(q, k, slice(packed, 2, 6), Pattern::window(3, 0)).out;
    const Tensor expected = linear(reshape(mixed, {2, 9, 16}), parameters[2].second, parameters[3].second);
    EXPECT_TRUE(all_close(layer.forward(x), expected, 1e-11, 1e-12)) << rotates;
  }
}

TEST(MultiheadAttention, GivesEveryParameterItsGradient) {
  MultiheadAttention layer(16, {.heads = 4, .kv_heads = 1, .bias = true});
  sum(square(layer.forward(input(9, 16, DType::f32)))).backward();
  for (const auto& [name, parameter] : layer.named_parameters()) EXPECT_GT(norm(parameter.grad()).item(), 0.0) << name;
}

TEST(MultiheadAttention, TakesEveryOptionOfAttention) {
  MultiheadAttention layer(16,
                           {.heads = 4,
                            .kv_heads = 2,
                            .pattern = Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal(),
                            .qk_norm = true,
                            .softcap = 2.0,
                            .alibi = true,
                            .sinks = true},
                           {.dtype = DType::f64});
  const auto parameters = nn::NamedTensors(layer.named_parameters());
  const auto parameter = [&](const std::string& name) {
    for (const auto& [own, tensor] : parameters)
      if (own == name) return tensor;
    ADD_FAILURE() << "no parameter " << name;
    return Tensor();
  };
  Generator generator(3);
  for (const auto& [name, tensor] : parameters)
    Tensor(tensor.detach()).copy_from(randn(tensor.shape(), tensor.options(), generator));
  const Tensor x = input(9, 16), packed = reshape(linear(x, parameter("projection.weight")), {2, 9, 8, 4});
  const Tensor q = rope(rms_norm(slice(packed, 2, 0, 4), parameter("q_norm.weight"))),
               k = rope(rms_norm(slice(packed, 2, 4, 6), parameter("k_norm.weight")));
  const Tensor mixed =
      attend_by_definition(
          q, k, slice(packed, 2, 6), Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal(),
          {.softcap = 2.0, .alibi = alibi_slopes(4, {.dtype = DType::f64}), .sinks = parameter("sinks")})
          .out;
  const Tensor expected = linear(reshape(mixed, {2, 9, 16}), parameter("output.weight"));
  const Tensor got = layer.forward(x);
  EXPECT_TRUE(all_close(got, expected, 1e-11, 1e-12));
  sum(square(got)).backward();
  for (const auto& [name, tensor] : parameters) EXPECT_GT(norm(tensor.grad()).item(), 0.0) << name;
}

TEST(MultiheadAttention, DropsWeightsInTrainingModeAlone) {
  Generator generator(4);
  MultiheadAttention layer(16, {.heads = 4, .dropout = 0.5}, {.dtype = DType::f64, .generator = &generator});
  const Tensor x = input(20, 16);
  const Tensor first = layer.forward(x), second = layer.forward(x);
  EXPECT_GT(max_difference(first, second), 1e-3);
  layer.eval();
  EXPECT_TRUE(bit_equal(layer.forward(x), layer.forward(x)));
}

/// Every causal pattern, every option: what is remembered is all that a later position needs.
TEST(MultiheadAttention, ContinuesASequenceFromItsState) {
  const NoGradGuard no_grad;
  for (const testing_support::Case& one : testing_support::pattern_cases())
    for (const bool plain : {true, false}) {
      MultiheadAttentionOptions options{.heads = 4, .kv_heads = 2, .pattern = causal(one).pattern};
      if (!plain) {
        options.qk_norm = options.alibi = options.sinks = true;
        options.softcap = 3.0;
      }
      MultiheadAttention layer(16, options, {.dtype = DType::f64});
      const Tensor x = input(61, 16), whole = layer.forward(x);
      nn::SequenceState state;
      std::vector<Tensor> pieces;
      for (const auto& [begin, end] : {std::pair{0, 20}, {20, 21}, {21, 22}, {22, 47}, {47, 61}})
        pieces.push_back(layer.forward(slice(x, 1, begin, end), &state));
      EXPECT_EQ(state.length, 61);
      EXPECT_TRUE(all_close(cat(pieces, 1), whole, 1e-11, 1e-12)) << one.name;
    }
}

TEST(MultiheadAttention, TakesGradientsThroughItsState) {
  MultiheadAttention layer(16, {.heads = 4, .kv_heads = 2}, {.dtype = DType::f64});
  const Tensor x = input(10, 16);
  const auto gradients = [&](bool in_pieces) {
    layer.zero_grad();
    nn::SequenceState state;
    const Tensor y = in_pieces
                         ? cat({layer.forward(slice(x, 1, 0, 6), &state), layer.forward(slice(x, 1, 6), &state)}, 1)
                         : layer.forward(x);
    sum(square(y)).backward();
    std::vector<Tensor> found;
    for (const Tensor& parameter : layer.parameters()) found.push_back(parameter.grad().copy());
    return found;
  };
  const auto whole = gradients(false), pieces = gradients(true);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(all_close(pieces[i], whole[i], 1e-10, 1e-12)) << i;
}

TEST(MultiheadAttention, RefusesSizesThatDoNotDivide) {
  const auto refusal = [](std::int64_t width, MultiheadAttentionOptions options) {
    return error_of<ValueError>([&] { MultiheadAttention(width, options); });
  };
  EXPECT_EQ(refusal(10, {.heads = 4}), "[multihead] width is not divisible by heads: width 10, heads 4, kv_heads 4");
  EXPECT_THAT(refusal(16, {.heads = 4, .kv_heads = 3}), HasSubstr("heads are not a multiple of kv_heads"));
  EXPECT_THAT(refusal(12, {.heads = 4, .kv_heads = 4}), HasSubstr("rotary positions need an even width per head"));
  EXPECT_THAT(refusal(12, {.heads = 0}), HasSubstr("sizes must be at least 1"));
  EXPECT_THAT(refusal(16, {.softcap = 0.0}), HasSubstr("the softcap must be a positive number: 0.0"));
  EXPECT_THAT(refusal(16, {.dropout = 1.0}), HasSubstr("dropout must be in [0, 1): 1.0"));
}

TEST(LanguageModelWithAttention, ContinuesASequenceFromItsState) {
  const NoGradGuard no_grad;
  for (const nn::Positions positions : {nn::Positions::rope, nn::Positions::learned}) {
    const auto model = make_language_model({.vocabulary = 12,
                                            .context = 16,
                                            .layers = 2,
                                            .width = 16,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .positions = positions,
                                            .tied_head = true,
                                            .dtype = DType::f64},
                                           {.pattern = Pattern::window(5, 0), .qk_norm = true, .sinks = true});
    for (Tensor parameter : model->parameters()) parameter.copy_from(randn(parameter.shape(), parameter.options()));
    const Tensor tokens = randint(0, 12, {1, 14});
    const Tensor whole = model->logits(tokens);
    auto state = model->new_state();
    std::vector<Tensor> pieces{model->logits(slice(tokens, 1, 0, 6), &state)};
    for (std::int64_t t = 6; t < 14; ++t) pieces.push_back(model->logits(slice(tokens, 1, t, t + 1), &state));
    EXPECT_TRUE(all_close(cat(pieces, 1), whole, 1e-10, 1e-11));
  }
}

}  // namespace
}  // namespace poolgrad::attention
