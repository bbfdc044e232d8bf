// Native sparse attention: its definition token by token, the selection, states, chunks and models.
#include "attention/modules/native_sparse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "nn/chunked.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/attention/modules/model_passes.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"
#include "tests/threads.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::ElementsAre;

constexpr std::int64_t sparse_head_dim = 4;
const NativeSparseOptions few_blocks{.block = 4, .count = 3, .window = 5};

struct Heads {
  std::int64_t queries, keys;
  std::int64_t width() const { return queries * sparse_head_dim; }
};

MultiheadOptions of_keys(const Heads& heads) {
  return {.kv_heads = heads.keys, .bias = false, .layer_norm = false, .post_norm = false, .rope = RopeOptions()};
}

Tensor sequences(std::int64_t length, std::int64_t width, Generator& generator, DType dtype = DType::f64) {
  return randn({2, length, width}, {.dtype = dtype}, generator);
}

/// Softmax attention of a query (D) to keys (n, D) and values (n, D).
std::pair<Tensor, Tensor> attended(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor weights =
      softmax(matmul(k, unsqueeze(q, 1)) * (1.0 / std::sqrt(static_cast<double>(sparse_head_dim))), 0);
  return {sum(weights * v, {0}), weights};
}

/// Every token of every sequence by itself.
Tensor by_definition(const nn::Module& module, const Tensor& x, const Heads& heads, const NativeSparseOptions& o) {
  const nn::NamedTensors all = module.named_parameters();
  const auto product = [&](const Tensor& of, const std::string& name) {
    return matmul(of, transpose(*nn::entry_of(all, name), 0, 1));
  };
  const std::int64_t batch = x.size(0), length = x.size(1), group = heads.queries / heads.keys;
  const Tensor packed =
      reshape(product(x, "projection.weight"), {batch, length, heads.queries + 2 * heads.keys, sparse_head_dim});
  const auto positions = kernels::PositionMap::contiguous(length);
  const Tensor q = rope(slice(packed, 2, 0, heads.queries), positions),
               k = rope(slice(packed, 2, heads.queries, heads.queries + heads.keys), positions),
               v = slice(packed, 2, heads.queries + heads.keys);
  const Tensor gates = sigmoid(product(x, "gates.weight"));
  std::vector<Tensor> sequences;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<Tensor> tokens;
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t own = t / o.block;
      std::vector<Tensor> of_heads(static_cast<std::size_t>(heads.queries));
      for (std::int64_t g = 0; g < heads.keys; ++g) {
        const Tensor keys = select(select(k, 0, b), 1, g), values = select(select(v, 0, b), 1, g);
        std::vector<Tensor> key_means, value_means;
        for (std::int64_t c = 0; c < own; ++c) {
          key_means.push_back(mean(slice(keys, 0, c * o.block, (c + 1) * o.block), {0}));
          value_means.push_back(mean(slice(values, 0, c * o.block, (c + 1) * o.block), {0}));
        }
        std::vector<double> total(static_cast<std::size_t>(own), 0.0);
        std::vector<Tensor> compressed;
        for (std::int64_t h = g * group; h < (g + 1) * group && own > 0; ++h) {
          const Tensor query = select(select(select(q, 0, b), 0, t), 0, h);
          const auto [out, weights] = attended(query, stack(key_means, 0), stack(value_means, 0));
          compressed.push_back(out);
          const std::vector<double> each = weights.to_vector<double>();
          for (std::size_t c = 0; c < total.size(); ++c) total[c] += each[c];
        }
        std::vector<std::int64_t> order(total.size()), seen;
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t c) {
          return total[static_cast<std::size_t>(a)] > total[static_cast<std::size_t>(c)];
        });
        order.resize(std::min(order.size(), static_cast<std::size_t>(o.count - 1)));
        order.push_back(own);
        for (const std::int64_t c : order)
          for (std::int64_t j = c * o.block; j < std::min((c + 1) * o.block, t + 1); ++j) seen.push_back(j);
        const Tensor chosen = from_data(seen, {std::ssize(seen)});
        const std::int64_t begin = std::max<std::int64_t>(0, t + 1 - o.window);
        for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
          const Tensor query = select(select(select(q, 0, b), 0, t), 0, h);
          const auto gate = [&](std::int64_t n) {
            return select(select(select(gates, 0, b), 0, t), 0, n * heads.queries + h);
          };
          Tensor out = gate(1) * attended(query, index_select(keys, 0, chosen), index_select(values, 0, chosen)).first;
          out = out + gate(2) * attended(query, slice(keys, 0, begin, t + 1), slice(values, 0, begin, t + 1)).first;
          if (own > 0) out = out + gate(0) * compressed[static_cast<std::size_t>(h - g * group)];
          of_heads[static_cast<std::size_t>(h)] = out;
        }
      }
      tokens.push_back(cat(of_heads, 0));
    }
    sequences.push_back(stack(tokens, 0));
  }
  return product(stack(sequences, 0), "output.weight");
}

TEST(NativeSparseAttention, HasOutputsAndGradientsOfItsDefinition) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  for (const Heads& heads : {Heads{1, 1}, {4, 4}, {4, 2}, {3, 1}})
    for (const std::int64_t length : {1, 3, 16, 37}) {
      NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads),
                                  {.dtype = DType::f64, .generator = &generator});
      const Tensor x = sequences(length, heads.width(), generator).set_requires_grad();
      const Tensor grad = sequences(length, heads.width(), generator);
      std::vector<Tensor> inputs = mixer.parameters();
      inputs.push_back(x);
      const Tensor got = mixer(x), want = by_definition(mixer, x, heads, few_blocks);
      EXPECT_TRUE(allclose(got, want, 1e-12, 1e-12)) << length << " seed " << seed;
      const std::vector<Tensor> gradients = gradients_or_zeros({got}, inputs, {grad}, {}),
                                wanted = gradients_or_zeros({want}, inputs, {grad}, {});
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_TRUE(allclose(gradients[i], wanted[i], 1e-12, 1e-12))
            << "heads " << heads.queries << "/" << heads.keys << " length " << length << " input " << i << " seed "
            << seed << ": " << max_difference(gradients[i], wanted[i]);
      }
    }
}

TEST(NativeSparseAttention, SelectsTheEarlierOfBlocksWithEqualWeights) {
  const Heads heads{2, 1};
  const NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads), {.dtype = DType::f64});
  const Tensor means = ones({1, 5, 1, sparse_head_dim}, {.dtype = DType::f64});
  const auto lists = mixer.select(zeros({1, 22, 2, sparse_head_dim}, means.options()), means,
                                  full({1, 22, 2}, std::log(5.0), means.options()));
  EXPECT_THAT(lists[0], ElementsAre(0));
  EXPECT_THAT(lists[9], ElementsAre(0, 1, 2));
  EXPECT_THAT(lists[21], ElementsAre(0, 1, 5));
}

TEST(NativeSparseAttention, SelectsTheBlocksOfTheLargestWeightsOfItsHeads) {
  const Heads heads{2, 1};
  const NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads), {.dtype = DType::f64});
  const TensorOptions f64{.dtype = DType::f64};
  // Five blocks before the query at position 20: head 0 prefers block 3, head 1 prefers block 1 more strongly.
  std::vector<double> means(5 * sparse_head_dim, 0.0);
  means[3 * sparse_head_dim] = 2, means[1 * sparse_head_dim + 1] = 6;
  const Tensor q = from_data<double>({1, 0, 0, 0, 0, 1, 0, 0}, {1, 1, 2, sparse_head_dim});
  const auto lists = mixer.select(q, from_data(means, {1, 5, 1, sparse_head_dim}), zeros({1, 1, 2}, f64), 20);
  EXPECT_THAT(lists[0], ElementsAre(1, 3, 5));
}

TEST(NativeSparseAttention, WritesTheSameInPieces) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const NoGradGuard guard;
  const Heads heads{4, 2};
  for (const auto& [dtype, tolerance] : {std::pair{DType::f64, 1e-12}, {DType::f32, 2e-5}}) {
    NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads),
                                {.dtype = dtype, .generator = &generator});
    const Tensor x = sequences(40, heads.width(), generator, dtype), whole = mixer(x);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{2, 3, 4, 20, 21, 27, 29, 40}, {40}, std::vector<std::int64_t>(40, 1)}) {
      nn::SequenceState state;
      std::vector<Tensor> pieces;
      for (const std::int64_t cut : cuts) {
        const std::int64_t begin = state.length, end = cuts.size() == 40 ? begin + 1 : cut;
        pieces.push_back(mixer(slice(x, 1, begin, end), &state));
        EXPECT_EQ(state.length, end);
      }
      EXPECT_TRUE(allclose(cat(pieces, 1), whole, tolerance, tolerance))
          << to_string(dtype) << " in " << cuts.size() << " pieces, seed " << seed << ": "
          << max_difference(cat(pieces, 1), whole);
    }
  }
}

TEST(NativeSparseAttention, WritesTheSameInPiecesWithOperandsOfOtherLayers) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const NoGradGuard guard;
  const Heads heads{4, 2};
  NativeSparseAttention sparse(heads.width(), heads.queries, few_blocks, of_keys(heads),
                               {.dtype = DType::f64, .generator = &generator});
  MultiheadShell& mixer = sparse;
  const Tensor x = sequences(40, heads.width(), generator),
               embedding = sequences(40, heads.keys * sparse_head_dim, generator);
  KeysValues of_whole;
  const Tensor whole = mixer.forward(x, nullptr, {.value_embedding = embedding, .shared = &of_whole});
  nn::SequenceState state;
  std::vector<Tensor> pieces;
  for (const std::int64_t end : {3, 20, 21, 40}) {
    KeysValues shared;
    const std::int64_t begin = state.length;
    pieces.push_back(mixer.forward(slice(x, 1, begin, end), &state,
                                   {.value_embedding = slice(embedding, 1, begin, end), .shared = &shared}));
    EXPECT_TRUE(allclose(shared.k, slice(of_whole.k, 1, 0, end), 1e-12, 1e-12)) << end << " seed " << seed;
    EXPECT_TRUE(allclose(shared.v, slice(of_whole.v, 1, 0, end), 1e-12, 1e-12)) << end << " seed " << seed;
  }
  EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-12, 1e-12)) << "seed " << seed;
}

TEST(NativeSparseAttention, RoundsHalfTypesOnly) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const Heads heads{4, 2};
  const NativeSparseOptions all{.block = 4, .count = 100, .window = 5};  // rounding exchanges no block
  NativeSparseAttention mixer(heads.width(), heads.queries, all, of_keys(heads), {.generator = &generator});
  const Tensor x = sequences(37, heads.width(), generator, DType::f32), want = mixer(x);
  for (const auto& [dtype, tolerance] : {std::pair{DType::bf16, 0.05}, {DType::f16, 0.01}}) {
    const Tensor half = to(x, dtype).set_requires_grad(), out = mixer(half);
    EXPECT_EQ(out.dtype(), dtype);
    EXPECT_LT(max_difference(to(out, DType::f32), want), tolerance) << to_string(dtype) << " seed " << seed;
    sum(out).backward();
    EXPECT_TRUE(std::isfinite(sum(to(half.grad(), DType::f32)).item()));
  }
}

TEST(NativeSparseAttention, LooksAtNoLaterPosition) {
  Generator generator(test_seed());
  const Heads heads{4, 2};
  NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads),
                              {.dtype = DType::f64, .generator = &generator});
  const Tensor x = sequences(30, heads.width(), generator),
               other = cat({slice(x, 1, 0, 17), sequences(13, heads.width(), generator)}, 1);
  EXPECT_TRUE(allclose(slice(mixer(x), 1, 0, 17), slice(mixer(other), 1, 0, 17), 1e-13, 1e-13));
  EXPECT_FALSE(mixer.looks_ahead());
  EXPECT_TRUE(mixer.continues());
}

TEST(NativeSparseAttention, HasTheSameBitsForAnyNumberOfThreads) {
  Generator generator(test_seed());
  const Heads heads{4, 2};
  NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads), {.generator = &generator});
  const Tensor x = sequences(300, heads.width(), generator, DType::f32).set_requires_grad();
  const auto run = [&](int threads) {
    const Threads guard(threads);
    const Tensor out = mixer(x);
    return std::pair{out.detach(), poolgrad::grad({sum(out * out)}, {x})[0]};
  };
  const auto one = run(1), three = run(3);
  EXPECT_TRUE(bit_equal(one.first, three.first));
  EXPECT_TRUE(bit_equal(one.second, three.second));
}

TEST(NativeSparseAttention, ReturnsNothingForEmptySequences) {
  const Heads heads{4, 2};
  NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads));
  for (const Shape& shape : {Shape{2, 0, heads.width()}, {0, 9, heads.width()}})
    EXPECT_EQ(mixer(zeros(shape)).shape(), shape);
}

TEST(NativeSparseAttention, RowsOfItsWeightsAddUpToTheGates) {
  Generator generator(test_seed());
  const Heads heads{4, 2};
  NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads),
                              {.dtype = DType::f64, .generator = &generator});
  const Tensor x = sequences(20, heads.width(), generator);
  const Tensor weights = mixer.weights(x);
  EXPECT_EQ(weights.shape(), (Shape{2, 4, 20, 20}));
  const Tensor gates = sigmoid(matmul(x, transpose(*nn::entry_of(mixer.named_parameters(), "gates.weight"), 0, 1)));
  const Tensor total = sum(reshape(gates, {2, 20, 3, 4}), {2});  // of queries with a block before their own
  EXPECT_TRUE(allclose(slice(sum(weights, {3}), 2, 4), permute(slice(total, 1, 4), {0, 2, 1}), 1e-12, 1e-12));
}

TEST(NativeSparseAttention, RefusesBadArgumentsInOneSentence) {
  EXPECT_EQ(error_of<ValueError>([] { NativeSparseAttention(16, 4, {.block = 0}); }),
            "[native_sparse] sizes must be at least 1: block 0, count 16, window 512");
  EXPECT_EQ(error_of<ValueError>([] { NativeSparseAttention(16, 4, {}, {.layer_norm = false, .sinks = true}); }),
            "[native_sparse] ALiBi, sinks and shared keys are not supported");
  NativeSparseAttention mixer(16, 4, few_blocks);
  const Tensor x = ones({1, 5, 16});
  EXPECT_EQ(error_of<ValueError>([&] {
              mixer.forward(x, x, x, {.bias = zeros({1, 1, 5, 5})});
            }),
            "[native_sparse] a bias, padding, ALiBi, sinks, scale, softcap, dropout and documents by row are not "
            "supported");
  for (const AttendOptions& call : {AttendOptions{.scale = 2.0}, {.softcap = 5.0}, {.dropout = 0.1}})
    EXPECT_THROW(mixer.forward(x, x, x, call), ValueError);
  EXPECT_THROW(mixer.forward(x, nullptr, {.documents = {{0, 2, 5}}}), ValueError);
  EXPECT_EQ(mixer(x).shape(), x.shape());
}

/// A layer of native sparse attention, a recurrent one, and another.
std::unique_ptr<nn::LanguageModel> sparse_model(Generator& generator) {
  std::vector<MixerSpec> layers(3);
  layers[0].sparse = layers[2].sparse = few_blocks;
  layers[0].multihead.output_deviation = layers[2].multihead.output_deviation = -1.0;
  layers[1].recurrent = {.chunk = 8, .output_deviation = -1.0};
  const nn::LanguageModelConfig config{
      .vocabulary = 11, .context = 40, .layers = 3, .width = 16, .heads = 4, .kv_heads = 2, .dtype = DType::f64};
  auto model = std::make_unique<nn::LanguageModel>(config, attention_mixer(layers),
                                                   nn::ParameterOptions{.generator = &generator});
  testing_support::disturb_parameters(*model, generator);
  return model;
}

TEST(NativeSparseAttention, GivesAModelTheSameLossInChunksAndUnderCheckpoints) {
  Generator generator(test_seed());
  testing_support::expect_same_loss_in_chunks_and_under_checkpoints(*sparse_model(generator), generator);
}

/// Peak of live bytes of a step in chunks of 32, beyond what lived before.
double peak_in_chunks(std::int64_t positions) {
  Generator generator{7};
  std::vector<MixerSpec> layers(1);
  layers[0].sparse = few_blocks;
  const nn::LanguageModelConfig config{.vocabulary = 11, .context = positions, .layers = 1, .width = 16, .heads = 4};
  nn::LanguageModel model(config, attention_mixer(layers), {.generator = &generator});
  const Tensor tokens = randint(0, 11, {1, positions}, {.dtype = DType::i64}, generator);
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const std::size_t before = pool.statistics().allocated_bytes.current;
  nn::chunked_loss(model, tokens, tokens, {.chunk = 32}).backward();
  return static_cast<double>(pool.statistics().allocated_bytes.peak - before);
}

TEST(NativeSparseAttention, TrainingInChunksTakesLinearMemory) {
  const double short_peak = peak_in_chunks(512), middle = peak_in_chunks(1024), long_peak = peak_in_chunks(2048);
  EXPECT_GT(middle, short_peak);
  EXPECT_LT(long_peak - middle, 2.4 * (middle - short_peak)) << "twice the positions add twice the bytes";
}

TEST(NativeSparseAttention, AModelRefusesOptionsThatTheMixerDoesNotHave) {
  const auto refusal = [](const auto& change) {
    MixerSpec spec{.sparse = few_blocks};
    change(spec);
    return error_of<ValueError>([&] {
      const nn::LanguageModel model({.context = 32, .layers = 1, .width = 16, .heads = 4}, attention_mixer({spec}));
    });
  };
  const std::string text =
      "[language_model] native sparse attention takes no pattern, scale, softcap, dropout and ring";
  EXPECT_EQ(refusal([](MixerSpec& spec) { spec.core.dropout = 0.1; }), text);
  EXPECT_EQ(refusal([](MixerSpec& spec) { spec.core.softcap = 5.0; }), text);
  EXPECT_EQ(refusal([](MixerSpec& spec) { spec.core.scale = 0.5; }), text);
  EXPECT_EQ(refusal([](MixerSpec& spec) { spec.ring.ring_size = 2; }), text);
  EXPECT_EQ(refusal([](MixerSpec& spec) { spec.pattern = Pattern::window(4, 0); }), text);
  EXPECT_EQ(refusal([](MixerSpec&) {}), "no exception");
}

/// Peak of allocated bytes of a training step of the mixer, and of a sequence written by pieces, beyond what lived
/// before.
std::size_t peak_on(Device device) {
  CachingAllocator& pool = allocator_for(device);
  Generator generator{7};
  const Heads heads{4, 2};
  NativeSparseAttention mixer(heads.width(), heads.queries, few_blocks, of_keys(heads),
                              {.device = device, .generator = &generator});
  const Tensor x = randn({2, 150, heads.width()}, {DType::f32, device}, generator).set_requires_grad();
  const auto run = [&] {
    sum(mixer(x)).backward();
    const NoGradGuard guard;
    nn::SequenceState state;
    for (std::int64_t t = 0; t < 20; ++t) mixer(slice(x.detach(), 1, t, t + 1), &state);
  };
  run();
  pool.reset_peaks();
  const std::size_t before = pool.statistics().allocated_bytes.current;
  run();
  return pool.statistics().allocated_bytes.peak - before;
}

TEST(NativeSparseAttention, HasThePeakThatASimulatedDevicePredicts) {
  const Device like_cpu{DeviceType::sim, 58};
  configure_simulated_device(like_cpu.index, std::size_t{1} << 30, "cpu");
  const std::size_t measured = peak_on(cpu);
  EXPECT_EQ(peak_on(like_cpu), measured);
  EXPECT_GT(measured, 0u);
}

}  // namespace
}  // namespace poolgrad::attention
