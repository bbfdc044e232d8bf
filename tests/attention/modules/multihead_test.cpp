#include "attention/modules/multihead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "attention/attend.h"
#include "attention/modules/named.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/print.h"
#include "tests/attention/attend_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t width = 12, heads = 4;
const nn::ParameterOptions in_f64{.dtype = DType::f64};

/// A core that returns its values, to test the shell alone.
class Values : public AttentionCore {
 public:
  Values() : AttentionCore({}) {}
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions&) override {
    last_q = q.detach();
    last_k = k.detach();
    return slice(v, 1, v.size(1) - q.size(1));
  }
  Tensor last_q, last_k;
};

Tensor input(std::int64_t length, std::uint64_t seed = 8) {
  Generator generator(seed);
  return randn({2, length, width}, {.dtype = DType::f64}, generator);
}

void randomise(nn::Module& module, std::uint64_t seed = 4) {
  Generator generator(seed);
  const NoGradGuard no_grad;
  for (Tensor& parameter : module.parameters())
    parameter.copy_from(randn(parameter.shape(), parameter.options(), generator) * 0.4);
}

Tensor parameter(const nn::Module& module, const std::string& name) {
  for (const auto& [known, tensor] : module.named_parameters())
    if (known == name) return tensor;
  throw IndexError("no parameter " + name);
}

TEST(MultiheadShell, RunsProjectionNormsCoreNormProjection) {
  Multihead<Values> layer(width, heads, {}, in_f64);
  randomise(layer);
  const Tensor x = input(5), weight = parameter(layer, "projection.weight"), bias = parameter(layer, "projection.bias");
  const auto projected = [&](std::int64_t part) {
    return linear(x, slice(weight, 0, part * width, (part + 1) * width),
                  slice(bias, 0, part * width, (part + 1) * width));
  };
  const auto normed = [&](const std::string& name, const Tensor& y) {
    return layer_norm(y, parameter(layer, name + ".weight"), parameter(layer, name + ".bias"), 1e-5);
  };
  const Tensor want =
      linear(normed("post_norm", projected(2)), parameter(layer, "output.weight"), parameter(layer, "output.bias"));
  EXPECT_TRUE(allclose(layer.forward(x), want, 1e-12, 1e-13));
  const Shape by_heads{2, 5, heads, width / heads};
  EXPECT_TRUE(allclose(layer.core().last_q, reshape(normed("q_norm", projected(0)), by_heads), 1e-12, 1e-13));
  EXPECT_TRUE(allclose(layer.core().last_k, reshape(normed("k_norm", projected(1)), by_heads), 1e-12, 1e-13));
}

TEST(MultiheadShell, HasOnlyTheParametersThatItUses) {
  const auto names = [](const MultiheadOptions& options) {
    std::vector<std::string> result;
    for (const auto& [name, tensor] : Multihead<Values>(width, heads, options, in_f64).named_parameters())
      result.push_back(name);
    return result;
  };
  EXPECT_THAT(names({.bias = false, .layer_norm = false, .post_norm = false}),
              testing::ElementsAre("projection.weight", "output.weight"));
  EXPECT_THAT(names({.bias = false, .layer_norm = false}),
              testing::ElementsAre("projection.weight", "post_norm.weight", "post_norm.bias", "output.weight"));
  EXPECT_EQ(names({}).size(), 10u);
}

TEST(MultiheadShell, GivesTheGainToValuesAndOutputOnly) {
  const auto weights = [](double gain) {
    Generator generator(3);
    Multihead<Values> layer(width, heads, {.gamma_init = gain}, {.dtype = DType::f64, .generator = &generator});
    return std::pair{parameter(layer, "projection.weight").detach(), parameter(layer, "output.weight").detach()};
  };
  const auto [packed, output] = weights(1.0);
  const auto [gained, gained_output] = weights(0.25);
  EXPECT_TRUE(bit_equal(slice(gained, 0, 0, 2 * width).copy(), slice(packed, 0, 0, 2 * width).copy()));
  EXPECT_TRUE(allclose(slice(gained, 0, 2 * width), slice(packed, 0, 2 * width) * 0.25, 1e-15));
  EXPECT_TRUE(allclose(gained_output, output * 0.25, 1e-15));
}

TEST(MultiheadShell, ProjectsDistinctQueryKeyAndValueSeparately) {
  for (const std::int64_t kv_heads : {4, 2}) {
    Multihead<ImprovedDilatedAttention> layer(width, heads, {.kv_heads = kv_heads}, in_f64,
                                              std::vector<std::int64_t>{4, 8}, std::vector<std::int64_t>{1, 2});
    randomise(layer);
    const Tensor x = input(9), same = x.copy(), other = x.copy();
    const Tensor whole = layer.forward(x);
    EXPECT_TRUE(allclose(layer.forward(x, x, x), whole, 0, 0));
    EXPECT_TRUE(allclose(layer.forward(x, same, same), whole, 1e-12, 1e-13));
    EXPECT_TRUE(allclose(layer.forward(x, same, other), whole, 1e-12, 1e-13));
    EXPECT_GT(max_difference(layer.forward(x, input(9, 1), same), whole), 1e-3);
    EXPECT_EQ(layer.forward(x, input(3, 1), input(3, 2)).shape(), x.shape());
  }
}

TEST(MultiheadShell, GivesEveryParameterItsGradient) {
  Multihead<ImprovedDilatedAttention> layer(width, heads, {}, {}, std::vector<std::int64_t>{4},
                                            std::vector<std::int64_t>{1});
  const Tensor x = to(input(9), DType::f32), y = to(input(9, 2), DType::f32);
  for (const bool cross : {false, true}) {
    layer.zero_grad();
    sum(square(cross ? layer.forward(x, y, y) : layer.forward(x))).backward();
    for (const auto& [name, tensor] : layer.named_parameters()) {
      if (name == "k_norm.bias") continue;  // equal for every key of a query: softmax ignores it
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_GT(norm(tensor.grad()).item(), 0.0) << name;
    }
  }
}

TEST(MultiheadShell, HasTheGradientsOfCentralDifferences) {
  Multihead<DilatedAttention> layer(width, heads, {}, in_f64, std::vector<std::int64_t>{4, 8},
                                    std::vector<std::int64_t>{1, 2});
  randomise(layer);
  EXPECT_TRUE(gradcheck(layer, input(6).set_requires_grad()));
}

TEST(MultiheadShell, GivesTheSameAroundInterchangeableCores) {
  const std::vector<std::int64_t> w{4, 8}, r{1, 2};
  for (const bool causal : {false, true}) {
    const MultiheadOptions options{.causal = causal};
    Multihead<DilatedAttention> readable(width, heads, options, in_f64, w, r);
    Multihead<ImprovedDilatedAttention> fused(width, heads, options, in_f64, w, r);
    randomise(readable);
    fused.load(readable.named_parameters());
    const Tensor x = input(21);
    const Tensor a = readable.forward(x), b = fused.forward(x);
    EXPECT_TRUE(allclose(a, b, 1e-11, 1e-12));
    sum(square(a)).backward();
    sum(square(b)).backward();
    const auto left = readable.named_parameters(), right = fused.named_parameters();
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t n = 0; n < left.size(); ++n)
      EXPECT_TRUE(allclose(left[n].second.grad(), right[n].second.grad(), 1e-9, 1e-10)) << left[n].first;
  }
}

TEST(MultiheadShell, ContinuesASequenceFromItsState) {
  const NoGradGuard no_grad;
  Multihead<ImprovedDilatedAttention> layer(width, heads, {.kv_heads = 2, .causal = true}, in_f64,
                                            std::vector<std::int64_t>{4, 8}, std::vector<std::int64_t>{1, 2});
  randomise(layer);
  const Tensor x = input(14), whole = layer.forward(x);
  nn::SequenceState state;
  std::vector<Tensor> pieces;
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 7}, {7, 14}})
    pieces.push_back(layer.forward(slice(x, 1, begin, end), &state));
  EXPECT_EQ(state.length, 14);
  EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-11, 1e-12));
}

TEST(MultiheadShell, ServesHalfPrecisionWithSingleParameters) {
  Multihead<ImprovedDilatedAttention> layer(width, heads, {}, {}, std::vector<std::int64_t>{4, 8},
                                            std::vector<std::int64_t>{1, 2});
  const Tensor x = input(9), want = layer.forward(to(x, DType::f32));
  const Tensor got = layer.forward(to(x, DType::bf16));
  EXPECT_EQ(got.dtype(), DType::bf16);
  EXPECT_LT(relative_error(got, want), 0.03);
}

TEST(MultiheadShell, RotatesQueriesAndKeysAfterTheirNorms) {
  Multihead<Values> plain(16, heads, {}, in_f64), rotating(16, heads, {.rope = 100.0}, in_f64);
  randomise(plain);
  rotating.load(plain.named_parameters());
  Generator generator(5);
  const Tensor x = randn({2, 7, 16}, {.dtype = DType::f64}, generator), y = slice(x, 1, 4);
  plain.forward(x);
  rotating.forward(x);
  EXPECT_TRUE(allclose(rotating.core().last_q, rope(plain.core().last_q, 0, 100.0), 1e-13, 1e-14));
  EXPECT_TRUE(allclose(rotating.core().last_k, rope(plain.core().last_k, 0, 100.0), 1e-13, 1e-14));
  plain.forward(y, x, x);
  rotating.forward(y, x, x);
  EXPECT_TRUE(allclose(rotating.core().last_q, rope(plain.core().last_q, 4, 100.0), 1e-13, 1e-14));
  EXPECT_TRUE(allclose(rotating.core().last_k, rope(plain.core().last_k, 0, 100.0), 1e-13, 1e-14));
}

TEST(MultiheadShell, DropsWeightsInTrainingOnly) {
  Generator generator(1);
  Multihead<ImprovedDilatedAttention> layer(width, heads, {}, in_f64, std::vector<std::int64_t>{8},
                                            std::vector<std::int64_t>{1}, DilatedOptions{},
                                            CoreOptions{.dropout = 0.5, .generator = &generator});
  const Tensor x = input(8);
  EXPECT_GT(max_difference(layer.forward(x), layer.forward(x)), 1e-3);
  layer.eval();
  EXPECT_EQ(max_difference(layer.forward(x), layer.forward(x)), 0.0);
}

TEST(MultiheadShell, NamesTheInvalidOption) {
  const auto refusal = [](std::int64_t size, std::int64_t of_heads, std::int64_t kv_heads) {
    return error_of<ValueError>([&] { Multihead<Values>(size, of_heads, {.kv_heads = kv_heads}, {}); });
  };
  EXPECT_EQ(refusal(10, 4, 0), "[multihead] width is not divisible by heads: width 10, heads 4, kv_heads 4");
  EXPECT_THAT(refusal(12, 4, 3), HasSubstr("heads are not a multiple of kv_heads"));
  EXPECT_THAT(refusal(12, 0, 0), HasSubstr("sizes must be at least 1"));
  EXPECT_THAT(error_of<ValueError>([] { Multihead<Values>(12, 4, {.rope = 10.0}, {}); }),
              HasSubstr("rotary positions need an even width per head"));
  EXPECT_EQ(error_of<ValueError>([] { MultiheadShell(12, 4, nullptr); }), "[multihead] the attention core is null");
  EXPECT_THAT(error_of<ValueError>([] {
                Multihead<DilatedAttention>(width, 1, {}, {}, std::vector<std::int64_t>{4, 8},
                                            std::vector<std::int64_t>{1, 2},
                                            DilatedOptions{.mode = DilatedMode::grouped});
              }),
              HasSubstr("in grouped mode every branch needs a head"));
  Multihead<Values> layer(width, heads, {}, in_f64);
  EXPECT_EQ(
      error_of<ShapeError>([&] {
        layer.forward(zeros({2, 3, 5}, {.dtype = DType::f64}));
      }),
      "[multihead] query, key and value must be (B, N, 12): query (2, 3, 5) f64 on cpu, key (2, 3, 5) f64 on cpu, "
      "value (2, 3, 5) f64 on cpu");
  EXPECT_THAT(error_of<DTypeError>([&] { layer.forward(input(3), to(input(3), DType::f32), input(3)); }),
              HasSubstr("[multihead]"));
}

Tensor input_of(std::int64_t length, std::int64_t features, DType dtype = DType::f64) {
  Generator generator(8);
  return randn({2, length, features}, {.dtype = dtype}, generator);
}

/// Options of language models: no norms around the heads, no biases, rotary positions.
MultiheadOptions modern(MultiheadOptions options) {
  options.bias = options.layer_norm = options.post_norm = false;
  options.rope = 10000.0;
  return options;
}

TEST(MultiheadAttention, RunsProjectionRotationAttentionProjection) {
  Generator generator(2);
  for (const bool rotates : {true, false}) {
    MultiheadOptions options = modern({.kv_heads = 2});
    options.bias = true;
    if (!rotates) options.rope.reset();
    MultiheadAttention layer(16, 4, options, {.dtype = DType::f64, .generator = &generator}, Pattern::window(3, 0));
    const auto parameters = layer.named_parameters();
    const Tensor x = input_of(9, 16);
    const Tensor packed = reshape(linear(x, parameters[0].second, parameters[1].second), {2, 9, 8, 4});
    Tensor q = slice(packed, 2, 0, 4), k = slice(packed, 2, 4, 6);
    if (rotates) {
      q = rope(q);
      k = rope(k);
    }
    const Tensor mixed = attend_by_definition(q, k, slice(packed, 2, 6), Pattern::window(3, 0)).out;
    const Tensor expected = linear(reshape(mixed, {2, 9, 16}), parameters[2].second, parameters[3].second);
    EXPECT_TRUE(allclose(layer.forward(x), expected, 1e-11, 1e-12)) << rotates;
  }
}

/// Softmax weights of each head and position, by the definition, in plain loops.
std::vector<double> weights_by_definition(const Tensor& q, const Tensor& k, const Pattern& pattern) {
  const std::int64_t batch = q.size(0), length = q.size(1), heads_of_q = q.size(2), depth = q.size(3);
  const std::vector<double> queries = q.to_vector<double>(), keys = k.to_vector<double>();
  const auto at = [&](const Tensor& x, std::int64_t b, std::int64_t t, std::int64_t h) {
    return static_cast<std::size_t>(((b * length + t) * x.size(2) + h) * depth);
  };
  std::vector<double> result;
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads_of_q; ++h)
      for (std::int64_t i = 0; i < length; ++i) {
        std::vector<double> row;
        double total = 0;
        for (std::int64_t j = 0; j < length; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < depth; ++d)
            score += queries[at(q, b, i, h) + static_cast<std::size_t>(d)] *
                     keys[at(k, b, j, h / (heads_of_q / k.size(2))) + static_cast<std::size_t>(d)];
          const auto times = static_cast<double>(pattern.multiplicity(h, heads_of_q, i, j));
          total += row.emplace_back(times * std::exp(score / std::sqrt(static_cast<double>(depth))));
        }
        for (const double weight : row) result.push_back(weight / total);
      }
  return result;
}

TEST(MultiheadAttention, ReturnsTheWeightsOfEachHead) {
  const NoGradGuard no_grad;
  for (const Pattern& pattern :
       {Pattern::causal(), Pattern::window(3, 0), Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal()})
    for (const int ranks : {1, 2}) {
      MultiheadAttention layer(16, 4, modern({.kv_heads = 2}), {.dtype = DType::f64}, pattern,
                               RingSetup{.ring_size = ranks});
      const Tensor x = input_of(10, 16);
      const Tensor packed = reshape(linear(x, parameter(layer, "projection.weight")), {2, 10, 8, 4});
      const Tensor q = rope(slice(packed, 2, 0, 4)), k = rope(slice(packed, 2, 4, 6));
      const Tensor found = layer.weights(x);
      EXPECT_EQ(found.shape(), (Shape{2, 4, 10, 10}));
      EXPECT_TRUE(allclose(found, from_data(weights_by_definition(q, k, pattern), found.shape()), 1e-11, 1e-12))
          << pattern.to_string() << ", " << ranks << " ranks";
    }
}

TEST(MultiheadAttention, WeightsOfEveryPatternAndOptionMixTheValues) {
  const NoGradGuard no_grad;
  for (const testing_support::Case& one : testing_support::pattern_cases()) {
    MultiheadAttention layer(16, 4, modern({.kv_heads = 2, .alibi = true, .sinks = true}), {.dtype = DType::f64},
                             causal(one).pattern, RingSetup{}, CoreOptions{.softcap = 3.0});
    const Tensor x = input_of(20, 16);
    const Tensor v = slice(reshape(linear(x, parameter(layer, "projection.weight")), {2, 20, 8, 4}), 2, 6);
    const Tensor of_heads =
        reshape(expand(reshape(permute(v, {0, 2, 1, 3}), {2, 2, 1, 20, 4}), {2, 2, 2, 20, 4}), {2, 4, 20, 4});
    const Tensor mixed = reshape(permute(matmul(layer.weights(x), of_heads), {0, 2, 1, 3}), {2, 20, 16});
    EXPECT_TRUE(allclose(linear(mixed, parameter(layer, "output.weight")), layer.forward(x), 1e-11, 1e-12)) << one.name;
  }
}

TEST(MultiheadAttention, GivesEveryParameterItsGradient) {
  MultiheadOptions options = modern({.kv_heads = 1});
  options.bias = true;
  MultiheadAttention layer(16, 4, options, {}, Pattern::causal());
  sum(square(layer.forward(input_of(9, 16, DType::f32)))).backward();
  for (const auto& [name, parameter] : layer.named_parameters()) EXPECT_GT(norm(parameter.grad()).item(), 0.0) << name;
}

TEST(MultiheadAttention, TakesEveryOptionOfAttention) {
  MultiheadAttention layer(16, 4, modern({.kv_heads = 2, .qk_norm = true, .alibi = true, .sinks = true}),
                           {.dtype = DType::f64}, Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal(), RingSetup{},
                           CoreOptions{.softcap = 2.0});
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
  const Tensor x = input_of(9, 16), packed = reshape(linear(x, parameter("projection.weight")), {2, 9, 8, 4});
  const Tensor q = rope(rms_norm(slice(packed, 2, 0, 4), parameter("q_norm.weight"))),
               k = rope(rms_norm(slice(packed, 2, 4, 6), parameter("k_norm.weight")));
  const Tensor mixed =
      attend_by_definition(
          q, k, slice(packed, 2, 6), Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal(),
          {.softcap = 2.0, .alibi = alibi_slopes(4, {.dtype = DType::f64}), .sinks = parameter("sinks")})
          .out;
  const Tensor expected = linear(reshape(mixed, {2, 9, 16}), parameter("output.weight"));
  const Tensor got = layer.forward(x);
  EXPECT_TRUE(allclose(got, expected, 1e-11, 1e-12));
  sum(square(got)).backward();
  for (const auto& [name, tensor] : parameters) EXPECT_GT(norm(tensor.grad()).item(), 0.0) << name;
}

TEST(MultiheadAttention, TakesABiasWithItsGradient) {
  MultiheadAttention layer(16, 4, modern({.kv_heads = 2}), {.dtype = DType::f64},
                           Pattern::window(5, kernels::unbounded));
  randomise(layer);
  const Tensor x = input_of(9, 16),
               packed = reshape(linear(x, parameter(layer, "projection.weight")), {2, 9, 8, 4}).detach();
  const Tensor q = rope(slice(packed, 2, 0, 4)), k = rope(slice(packed, 2, 4, 6)), v = slice(packed, 2, 6);
  Generator generator(4);
  for (const Shape& shape : {Shape{2, 4, 9, 9}, Shape{1, 1, 9, 9}, Shape{2, 1, 1, 9}}) {
    const Tensor values = randn(shape, {.dtype = DType::f64}, generator);
    const auto run = [&](const auto& attended) {
      const Tensor bias = values.detach().set_requires_grad();
      const Tensor out = attended(bias);
      sum(square(out)).backward();
      return std::pair{out.detach(), bias.grad()};
    };
    const auto [got, dbias] = run([&](const Tensor& bias) { return layer(x, x, x, {.causal = true, .bias = bias}); });
    const auto [want, expected] = run([&](const Tensor& bias) {
      const Tensor mixed = attend_by_definition(q, k, v, Pattern::window(5, 0), {.bias = bias}).out;
      return linear(reshape(mixed, {2, 9, 16}), parameter(layer, "output.weight"));
    });
    EXPECT_TRUE(allclose(got, want, 1e-11, 1e-12)) << to_string(shape);
    EXPECT_TRUE(allclose(dbias, expected, 1e-11, 1e-12)) << to_string(shape);
  }
}

TEST(MultiheadAttention, AdditiveMasksGiveTheResultOfThePattern) {
  const auto expect_same = [](auto&& masked, auto&& causal, DType dtype) {
    randomise(masked), randomise(causal);
    const Tensor x = input_of(9, 16, dtype), position = arange(0, 9), later = less(unsqueeze(position, 1), position);
    const Tensor mask = masked_fill(zeros({1, 1, 9, 9}, {.dtype = dtype}), later, -testing_support::infinity);
    EXPECT_EQ(max_difference(masked(x, x, x, {.bias = mask}), causal(x, x, x)), 0.0) << to_string(dtype);
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    expect_same(MultiheadAttention(16, 4, modern({}), {.dtype = dtype}, Pattern::dense()),
                MultiheadAttention(16, 4, modern({}), {.dtype = dtype}, Pattern::causal()), dtype);
}

TEST(MultiheadAttention, TakesABiasOnOneRankOnly) {
  const LocalGroup one(1);
  const Tensor x = input_of(9, 16), bias = ones({1, 1, 9, 9}, {.dtype = DType::f64});
  const auto layer = [](const RingSetup& ring) {
    Generator generator(2);
    return MultiheadAttention(16, 4, modern({}), {.dtype = DType::f64, .generator = &generator}, Pattern::dense(),
                              ring);
  };
  MultiheadAttention alone = layer({}), told = layer({.communicator = one.communicator(0)}),
                     ring = layer({.ring_size = 3});
  EXPECT_TRUE(bit_equal(told(x, x, x, {.bias = bias}), alone(x, x, x, {.bias = bias})));
  for (const std::int64_t queries : {9, 2})
    EXPECT_THAT(
        error_of<ValueError>([&] { ring(slice(x, 1, 0, queries), x, x, {.bias = slice(bias, 2, 0, queries)}); }),
        HasSubstr("[ring_attend] a bias of all pairs is not divided among ranks: q (2, "))
        << queries;
}

TEST(MultiheadAttention, DropsWeightsInTrainingModeOnly) {
  Generator generator(4);
  MultiheadAttention layer(16, 4, modern({}), {.dtype = DType::f64, .generator = &generator}, Pattern::causal(),
                           RingSetup{}, CoreOptions{.dropout = 0.5, .generator = &generator});
  const Tensor x = input_of(20, 16);
  const Tensor first = layer.forward(x), second = layer.forward(x);
  EXPECT_GT(max_difference(first, second), 1e-3);
  layer.eval();
  EXPECT_TRUE(bit_equal(layer.forward(x), layer.forward(x)));
}

/// Fails once if `fails` is set.
class FailsWhenTold : public RingAttention {
 public:
  using RingAttention::RingAttention;
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call) override {
    if (std::exchange(fails, false)) throw Error("[core] as told");
    return RingAttention::forward(q, k, v, call);
  }
  bool fails = false;
};

/// Every causal pattern and option: the state suffices for all later positions.
TEST(MultiheadAttention, ContinuesASequenceFromItsState) {
  const NoGradGuard no_grad;
  for (const testing_support::Case& one : testing_support::pattern_cases())
    for (const bool plain : {true, false}) {
      MultiheadOptions options = modern({.kv_heads = 2});
      CoreOptions core;
      if (!plain) {
        options.qk_norm = options.alibi = options.sinks = true;
        core.softcap = 3.0;
      }
      MultiheadAttention layer(16, 4, options, {.dtype = DType::f64}, causal(one).pattern, RingSetup{}, core);
      const Tensor x = input_of(61, 16), whole = layer.forward(x);
      nn::SequenceState state;
      std::vector<Tensor> pieces;
      for (const auto& [begin, end] : {std::pair{0, 20}, {20, 21}, {21, 22}, {22, 47}, {47, 61}})
        pieces.push_back(layer.forward(slice(x, 1, begin, end), &state));
      EXPECT_EQ(state.length, 61);
      EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-11, 1e-12)) << one.name;
    }
}

TEST(MultiheadAttention, KeepsItsStateAfterACallThatThrows) {
  const NoGradGuard no_grad;
  Multihead<FailsWhenTold> layer(16, 4, modern({.causal = true}), {.dtype = DType::f64}, Pattern::causal());
  const Tensor x = input_of(12, 16), whole = layer.forward(x);
  for (const std::int64_t in_chunks_of : {0, 12}) {
    nn::SequenceState state;
    state.whole = in_chunks_of;
    std::vector<Tensor> pieces;
    for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 12}}) {
      layer.core().fails = true;
      EXPECT_EQ(error_of<Error>([&] { layer.forward(slice(x, 1, begin, 12), &state); }), "[core] as told");
      EXPECT_EQ(state.length, begin);
      pieces.push_back(layer.forward(slice(x, 1, begin, end), &state));
    }
    EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-11, 1e-12)) << in_chunks_of;
  }
}

TEST(MultiheadAttention, TakesGradientsThroughItsState) {
  MultiheadAttention layer(16, 4, modern({.kv_heads = 2}), {.dtype = DType::f64}, Pattern::causal());
  const Tensor x = input_of(10, 16);
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
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(allclose(pieces[i], whole[i], 1e-10, 1e-12)) << i;
}

TEST(MultiheadAttention, RefusesIndivisibleSizes) {
  const auto refusal = [](std::int64_t size, std::int64_t count, std::int64_t kv_heads, const CoreOptions& core = {}) {
    return error_of<ValueError>([&] {
      MultiheadAttention(size, count, modern({.kv_heads = kv_heads}), {}, Pattern::causal(), RingSetup{}, core);
    });
  };
  EXPECT_EQ(refusal(10, 4, 4), "[multihead] width is not divisible by heads: width 10, heads 4, kv_heads 4");
  EXPECT_THAT(refusal(16, 4, 3), HasSubstr("heads are not a multiple of kv_heads"));
  EXPECT_THAT(refusal(12, 4, 4), HasSubstr("rotary positions need an even width per head"));
  EXPECT_THAT(refusal(12, 0, 4), HasSubstr("sizes must be at least 1"));
  EXPECT_THAT(refusal(16, 4, 4, {.softcap = 0.0}), HasSubstr("the softcap must be a positive number: 0.0"));
  EXPECT_THAT(refusal(16, 4, 4, {.dropout = 1.0}), HasSubstr("dropout must be in [0, 1): 1.0"));
}

TEST(LanguageModelWithAttention, RefusesAPatternThatLooksAhead) {
  const nn::LanguageModelConfig config{.context = 16, .layers = 1, .width = 16};
  const auto refused = [&](const nn::MixerFactory& mixer) {
    return error_of<ValueError>([&] { nn::LanguageModel(config, mixer); });
  };
  const std::string text =
      "[language_model] block 0 looks ahead and sees the tokens to predict: make it causal (& "
      "Pattern::causal()), or set looks_ahead to allow it";
  EXPECT_EQ(error_of<ValueError>([&] { make_language_model(config, Pattern::window(4, 4)); }), text);
  EXPECT_EQ(refused(attention_mixer(Pattern::dense())), text);
  EXPECT_EQ(refused(attention_mixer(Pattern::dilated({8}, {2}))), text);
  EXPECT_EQ(refused(attention_mixer(Pattern::sink_tokens(2) | Pattern::window(4, 0))), text);
  const auto until = [](std::int64_t last) {  // keys up to the query's position and `last` more
    return Pattern::where(16, 2, [=](std::int64_t, std::int64_t i, std::int64_t j) { return j <= i + last; });
  };
  EXPECT_EQ(refused(attention_mixer(until(1))), text);
  for (const Pattern& pattern : {Pattern::window(4, 0), Pattern::dilated({8}, {2}) & Pattern::causal(), until(0)})
    EXPECT_EQ(refused(attention_mixer(pattern)), "no exception") << pattern.to_string();
  EXPECT_EQ(refused(attention_mixer(Pattern::dense(), {.layer_norm = false, .post_norm = false, .causal = true})),
            "no exception");
  nn::LanguageModelConfig encoder = config;
  encoder.looks_ahead = true;
  EXPECT_EQ(make_language_model(encoder, Pattern::dense())->hidden(randint(0, 256, {1, 9})).shape(), (Shape{1, 9, 16}));
}

TEST(LanguageModelWithAttention, HasKeysAndValuesForEveryHeadByDefault) {
  const auto parameters = [](std::int64_t heads, std::int64_t kv_heads) {
    return make_language_model({.context = 64, .layers = 1, .width = 64, .heads = heads, .kv_heads = kv_heads},
                               Pattern::causal())
        ->parameter_count();
  };
  EXPECT_EQ(parameters(8, 0), parameters(8, 8));
  EXPECT_EQ(parameters(2, 0), parameters(2, 2));
  EXPECT_GT(parameters(8, 0), parameters(8, 4));
}

TEST(LanguageModelWithAttention, RefusesAPatternShorterThanTheContext) {
  const nn::LanguageModelConfig config{.context = 128, .layers = 1, .width = 16};
  const auto causal = [](std::int64_t i, std::int64_t j) { return j <= i; };
  const auto refused = [&](const Pattern& pattern) {
    return error_of<ValueError>([&] { make_language_model(config, pattern); });
  };
  EXPECT_EQ(refused(Pattern::where(100, causal)),
            "[language_model] the pattern is made for 100 positions, and the context has 128: " +
                Pattern::where(100, causal).to_string());
  EXPECT_THAT(refused(Pattern::where(64, causal) & Pattern::causal()), HasSubstr("made for 64 positions"));
  EXPECT_THAT(refused(Pattern::blocks(16, {0, 1, 2, 3}, {0, 0, 1}) & Pattern::causal()),
              HasSubstr("made for 48 positions"));
  for (const Pattern& pattern : {Pattern::where(128, causal), Pattern::where(64, causal) | Pattern::window(3, 0)})
    EXPECT_EQ(refused(pattern), "no exception") << pattern.to_string();
  const auto model = make_language_model(config, Pattern::where(130, causal));
  EXPECT_EQ(model->hidden(randint(0, 256, {1, 130})).shape(), (Shape{1, 130, 16}));
  EXPECT_THAT(error_of<ValueError>([&] {
                model->hidden(randint(0, 256, {1, 131}));
              }),
              HasSubstr("[ring_attention] the pattern is made for 130 positions, and the sequence has 131: "));
}

TEST(LanguageModelWithAttention, RunsBeyondItsContextWithOrWithoutAState) {
  const NoGradGuard no_grad;
  for (const Pattern& pattern :
       {Pattern::causal(), Pattern::window(5, 0), Pattern::dilated({4, 8}, {1, 2}) & Pattern::causal()}) {
    const auto model = make_language_model({.vocabulary = 12, .context = 8, .width = 16, .dtype = DType::f64}, pattern);
    for (Tensor parameter : model->parameters()) parameter.copy_from(randn(parameter.shape(), parameter.options()));
    const Tensor tokens = randint(0, 12, {2, 20}), whole = model->logits(tokens);
    auto at_once = model->new_state(), in_pieces = model->new_state();
    EXPECT_TRUE(allclose(model->logits(tokens, &at_once), whole, 1e-10, 1e-11)) << pattern.to_string();
    std::vector<Tensor> pieces;
    for (std::int64_t t = 0; t < 20; t += 5) pieces.push_back(model->logits(slice(tokens, 1, t, t + 5), &in_pieces));
    EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-10, 1e-11)) << pattern.to_string();
    EXPECT_TRUE(allclose(slice(whole, 1, 0, 8), model->logits(slice(tokens, 1, 0, 8)), 1e-10, 1e-11));
  }
}

TEST(MixerSpec, SetsTheAttentionOfEachLayer) {
  const NoGradGuard no_grad;
  const nn::LanguageModelConfig config{
      .vocabulary = 12, .context = 24, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2, .dtype = DType::f64};
  const auto logits_by = [&](const nn::MixerFactory& mixer, const Tensor& tokens) {
    Generator generator(3);
    nn::LanguageModel model(config, mixer, {.generator = &generator});
    for (Tensor parameter : model.parameters())
      parameter.copy_from(randn(parameter.shape(), parameter.options(), generator));
    return model.logits(tokens).to_vector<double>();
  };
  Generator of_tokens(3);
  const Tensor tokens = randint(0, 12, {1, 24}, {.dtype = DType::i64}, of_tokens);
  const MixerSpec window{.pattern = Pattern::window(5, 0)}, causal{.positions = false};
  const MultiheadOptions plain{.layer_norm = false, .post_norm = false};
  EXPECT_EQ(logits_by(attention_mixer({window}), tokens),
            logits_by(attention_mixer(Pattern::window(5, 0), plain), tokens))
      << "one is of every layer";
  EXPECT_EQ(logits_by(attention_mixer({window, window}), tokens), logits_by(attention_mixer({window}), tokens));
  EXPECT_NE(logits_by(attention_mixer({window, causal}), tokens), logits_by(attention_mixer({causal, window}), tokens));

  // Without positions, attention ignores the order of keys; with positions it does not.
  const Tensor turned = cat({flip(slice(tokens, 1, 0, 23), 1), slice(tokens, 1, 23, 24)}, 1);
  const auto last = [&](const MixerSpec& spec, const Tensor& of) {
    nn::LanguageModelConfig one = config;
    one.layers = 1;
    Generator generator(3);
    nn::LanguageModel model(one, attention_mixer({spec}), {.generator = &generator});
    for (Tensor parameter : model.parameters())
      parameter.copy_from(randn(parameter.shape(), parameter.options(), generator));
    return slice(model.logits(of), 1, 23, 24);
  };
  EXPECT_TRUE(allclose(last(causal, tokens), last(causal, turned), 1e-10, 1e-11));
  EXPECT_FALSE(allclose(last({}, tokens), last({}, turned), 1e-3, 1e-3));
}

TEST(MixerSpec, OverridesTheHeadCountsOfTheModel) {
  const nn::LanguageModelConfig config{.context = 8, .layers = 4, .width = 16, .heads = 4, .kv_heads = 2};
  MixerSpec eight{.heads = 8}, one_key{.heads = 2};
  one_key.multihead.kv_heads = 1;
  MixerSpec all_keys{};
  all_keys.multihead.kv_heads = 4;
  nn::LanguageModel model(config, attention_mixer({MixerSpec{}, eight, one_key, all_keys}));
  std::vector<std::int64_t> rows;
  for (const auto& [name, parameter] : model.named_parameters())
    if (name.ends_with("projection.weight")) rows.push_back(parameter.size(0));
  EXPECT_EQ(rows, (std::vector<std::int64_t>{16 + 2 * 8, 3 * 16, 16 + 2 * 8, 3 * 16}));
  EXPECT_EQ(error_of<ValueError>([&] {
              nn::LanguageModel(config, attention_mixer({MixerSpec{}, eight}));
            }),
            "[language_model] there are 2 mixers for 4 layers");
  EXPECT_EQ(error_of<ValueError>([&] { nn::LanguageModel(config, attention_mixer({MixerSpec{.heads = 3}})); }),
            "[multihead] width is not divisible by heads: width 16, heads 3, kv_heads 3");
}

TEST(LanguageModelWithAttention, ContinuesASequenceFromItsState) {
  const NoGradGuard no_grad;
  for (const nn::Positions positions : {nn::Positions::rope, nn::Positions::learned}) {
    nn::LanguageModel model({.vocabulary = 12,
                             .context = 16,
                             .layers = 2,
                             .width = 16,
                             .heads = 4,
                             .kv_heads = 2,
                             .positions = positions,
                             .tied_head = true,
                             .dtype = DType::f64},
                            attention_mixer(Pattern::window(5, 0), modern({.qk_norm = true, .sinks = true})));
    for (Tensor parameter : model.parameters()) parameter.copy_from(randn(parameter.shape(), parameter.options()));
    const Tensor tokens = randint(0, 12, {1, 14});
    const Tensor whole = model.logits(tokens);
    auto state = model.new_state();
    std::vector<Tensor> pieces{model.logits(slice(tokens, 1, 0, 6), &state)};
    for (std::int64_t t = 6; t < 14; ++t) pieces.push_back(model.logits(slice(tokens, 1, t, t + 1), &state));
    EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-10, 1e-11));
  }
}

}  // namespace
}  // namespace poolgrad::attention
