// Attention over sequences in chunks: a chunked step equals a whole one except for rounding.
#include "attention/modules/past_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/modules/named.h"
#include "autograd/operators.h"
#include "nn/chunked.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t length = 100;

nn::LanguageModelConfig three_layers() {
  return {
      .vocabulary = 11, .context = length, .layers = 3, .width = 16, .heads = 4, .kv_heads = 2, .dtype = DType::f64};
}

/// A model with perturbed parameters, a text for it, and chunked and whole steps.
struct InChunks {
  Generator generator{7};
  nn::LanguageModel model;
  Tensor tokens, targets;

  explicit InChunks(const nn::MixerFactory& mixer, const nn::LanguageModelConfig& config = three_layers(),
                    std::int64_t batch = 2)
      : model(config, mixer, {.generator = &generator}) {
    const NoGradGuard no_grad;
    for (Tensor& parameter : model.parameters())
      parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.2);
    tokens = randint(0, 11, {batch, length}, {.dtype = DType::i64}, generator);
    targets = randint(0, 11, {batch, length}, {.dtype = DType::i64}, generator);
  }

  struct Step {
    double loss;
    std::vector<Tensor> gradients;
    std::uint64_t numbers;  // taken from the generator
  };
  template <class Loss>
  Step step(const Loss& loss) {
    generator.set_state({7, 3, 100});
    model.zero_grad();
    const Tensor total = loss();
    const Step result{total.item(), {}, generator.state().offset};
    total.backward();
    EXPECT_EQ(generator.state().offset, result.numbers) << "the backward takes no numbers";
    Step with{result.loss, {}, result.numbers};
    for (const Tensor& parameter : model.parameters()) with.gradients.push_back(parameter.grad());
    return with;
  }
  Step whole() {
    return step([&] { return model.loss(tokens, targets, true) * 0.25; });
  }
  Step in_chunks(std::int64_t chunk, std::int64_t store_every = 1) {
    return step(
        [&] { return nn::chunked_loss(model, tokens, targets, {.chunk = chunk, .store_every = store_every}) * 0.25; });
  }
};

/// "" if loss and gradients agree within `tolerance` of the largest element of each, at least 1.
std::string difference(const InChunks::Step& got, const InChunks::Step& want, double tolerance = 1e-12) {
  if (!(std::abs(got.loss - want.loss) <= tolerance * std::abs(want.loss)))
    return "loss " + std::to_string(got.loss) + ", not " + std::to_string(want.loss);
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    if (!got.gradients[i].defined()) return "parameter " + std::to_string(i) + " has no gradient";
    double largest = 1;
    for (const double x : want.gradients[i].to_vector<double>()) largest = std::max(largest, std::abs(x));
    const double distance = max_difference(got.gradients[i], want.gradients[i]);
    if (!(distance <= tolerance * largest))
      return "the gradient of parameter " + std::to_string(i) + " differs by " + std::to_string(distance);
  }
  return "";
}

struct NamedMixer {
  std::string name;
  nn::MixerFactory mixer;
  std::int64_t kept = length;  // most earlier positions that later queries see
};

std::vector<NamedMixer> mixers_of_every_pattern() {
  const Pattern causal = Pattern::causal(), window = Pattern::window(11, 0);
  const MultiheadOptions plain{.layer_norm = false, .post_norm = false};
  const MultiheadOptions rich{.post_norm = false, .alibi = true, .sinks = true};
  return {
      {"window", attention_mixer(window), 11},
      {"window, norms, ALiBi, sinks", attention_mixer(window, rich), 11},
      {"window, softcap", attention_mixer(window, plain, {.softcap = 5.0}), 11},
      {"causal", attention_mixer(causal)},
      {"dilated", attention_mixer(Pattern::dilated({16, 48}, {1, 3}) & causal)},
      {"grouped", attention_mixer(Pattern::dilated({16, 48}, {1, 3}, {.mode = DilatedMode::grouped}) & causal)},
      {"global and window", attention_mixer((window | Pattern::global_tokens(6)) & causal), 6 + 11},
      {"global and window, ALiBi", attention_mixer((window | Pattern::global_tokens(6)) & causal, rich), 6 + 11},
      {"global and blocks", attention_mixer(Pattern::global_local(16, 32, 7) & causal)},
      {"global and blocks in a window", attention_mixer(Pattern::global_local(16, 32, 12) & Pattern::window(40, 0))},
      {"documents", attention_mixer(Pattern::documents({0, 13, 50, 90}) & causal)},
      {"sinks and window in documents",
       attention_mixer((window | Pattern::sink_tokens(5)) & Pattern::documents({0, 40, 100}) & causal)},
      {"strided", attention_mixer(Pattern::strided(8) & causal)},
      {"random", attention_mixer(Pattern::random_blocks(16, 0.4, 3) & causal)},
      {"sum", attention_mixer((Pattern::dilated({16}, {2}) + window) & causal)},
      {"ring", attention_mixer((window | Pattern::sink_tokens(2)) & causal, plain, {}, {.ring_size = 3}), 2 + 11},
      {"named dilated", dilated_mixer("standard", {.segment_lengths = {16, 48}, .dilation_rates = {1, 3}})},
      {"dilated that must divide",
       dilated_mixer("improved",
                     {.segment_lengths = {20}, .dilation_rates = {1}, .dilated = {.require_divisible = true}})},
      {"block-sparse of a density", block_sparse_mixer("base", {.sparse = SparsePatternConfig{.sparsity_ratio = 0.5}})},
      {"hierarchical", block_sparse_mixer("hierarchical", {.levels = {{16, 32, 16}, {32, -1, 32}}})},
  };
}

TEST(ChunkedAttention, HasTheLossAndGradientsOfOnePassForEveryPattern) {
  for (const std::int64_t batch : {1, 2})
    for (const auto& [name, mixer, kept] : mixers_of_every_pattern()) {
      InChunks both(mixer, three_layers(), batch);
      const InChunks::Step want = both.whole();
      for (const std::int64_t chunk : {7, 16, 33, 99, 100, 1000})
        EXPECT_EQ(difference(both.in_chunks(chunk), want), "") << name << " in chunks of " << chunk;
    }
}

TEST(ChunkedAttention, DropsTheSameWeightsAsOnePass) {
  nn::LanguageModelConfig config = three_layers();
  config.dropout = 0.2;
  const Pattern pattern = (Pattern::window(11, 0) | Pattern::sink_tokens(3)) & Pattern::causal();
  InChunks both(attention_mixer(pattern, {.layer_norm = false, .post_norm = false}, {.dropout = 0.3}), config);
  const InChunks::Step want = both.whole();
  for (const std::int64_t chunk : {7, 33})
    for (const std::int64_t store_every : {1, 3}) {
      const InChunks::Step got = both.in_chunks(chunk, store_every);
      EXPECT_EQ(difference(got, want), "") << "chunks of " << chunk;
      EXPECT_EQ(got.numbers, want.numbers);
    }
  config.dropout = 0;
  InChunks without(attention_mixer(pattern), config);
  EXPECT_NE(difference(without.whole(), want), "") << "nothing was dropped";
}

TEST(ChunkedAttention, GivesTheSameBitsForAnyStoreEvery) {
  for (const char* name : {"global and window", "dilated", "causal"})
    for (const auto& each : mixers_of_every_pattern()) {
      if (each.name != name) continue;
      InChunks both(each.mixer);
      const InChunks::Step want = both.in_chunks(9);
      for (const std::int64_t store_every : {1, 2, 5, 100}) {
        const InChunks::Step got = both.in_chunks(9, store_every);
        EXPECT_EQ(got.loss, want.loss);
        for (std::size_t i = 0; i < want.gradients.size(); ++i)
          EXPECT_TRUE(bit_equal(got.gradients[i], want.gradients[i])) << name << " " << store_every;
      }
    }
}

TEST(ChunkedAttention, WithoutGradModeReturnsOnlyTheLoss) {
  InChunks both(attention_mixer(Pattern::window(11, 0)));
  const NoGradGuard no_grad;
  const Tensor loss = nn::chunked_loss(both.model, both.tokens, both.targets, {.chunk = 17});
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item(), both.model.loss(both.tokens, both.targets, true).item(), 1e-10);
}

TEST(ChunkedAttention, TakesSequencesBeyondTheContext) {
  nn::LanguageModelConfig config = three_layers();
  config.context = 20;
  InChunks both(attention_mixer(Pattern::window(11, 0)), config);
  EXPECT_NEAR(both.in_chunks(20).loss, both.whole().loss, 1e-9);
}

/// Peak of live bytes of a step over `positions`, beyond the step's tokens, in an f32 model.
std::uint64_t peak_of(const Pattern& pattern, std::int64_t positions, std::int64_t store_every = 1) {
  Generator generator{7};
  const auto model = make_language_model({.context = 64, .layers = 2, .width = 32}, pattern, {.generator = &generator});
  const Tensor tokens = randint(0, 11, {1, positions}, {.dtype = DType::i64}, generator);
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const std::uint64_t before = pool.statistics().allocated_bytes.current;
  nn::chunked_loss(*model, tokens, tokens, {.chunk = 64, .store_every = store_every}).backward();
  return pool.statistics().allocated_bytes.peak - before;
}

TEST(ChunkedAttention, PeakOfWindowsGrowsOnlyByTheStoredStates) {
  const Pattern window = Pattern::window(7, 0);
  const std::uint64_t state = 2 * 2 * 7 * 32 * sizeof(float);  // layers, keys and values, positions, width
  const std::uint64_t shorter = peak_of(window, 64 * 16), longer = peak_of(window, 64 * 64);
  EXPECT_LE(longer, shorter + 48 * (state + 4 * 512)) << "a state more for each chunk, with the pool's rounding";
  EXPECT_LE(peak_of(window, 64 * 64, 8), peak_of(window, 64 * 16, 4) + 8 * (state + 4 * 512));
  EXPECT_GT(peak_of(Pattern::causal(), 64 * 64), 2 * longer) << "what sees everything keeps everything";
}

TEST(ChunkedAttention, RefusesMixersThatLookAheadOrNeedTheWholeSequence) {
  const auto refusal = [](const nn::MixerFactory& mixer) {
    nn::LanguageModelConfig config = three_layers();
    config.looks_ahead = true;
    InChunks both(mixer, config);
    const std::string text = error_of<ValueError>([&] { both.in_chunks(10); });
    EXPECT_GT(both.whole().loss, 0) << "the next call works";
    return text;
  };
  EXPECT_EQ(refusal(attention_mixer(Pattern::window(4, 4))),
            "[chunks] a pattern that looks ahead cannot process a sequence in chunks: window(4, 4)");
  EXPECT_THAT(refusal(attention_mixer(Pattern::documents({0, 100}))),
              HasSubstr("looks ahead cannot process a sequence in chunks: documents(1)"));
  EXPECT_EQ(refusal(block_sparse_mixer("adaptive", {.head_dim = 4})),
            "[multihead] this attention needs the whole sequence at once and cannot process it in chunks");
}

TEST(ChunkedAttention, KeepsOnlyKeysThatLaterQueriesSee) {
  const Pattern pattern = (Pattern::window(5, 0) | Pattern::sink_tokens(2)) & Pattern::causal();
  nn::SequenceState state;
  state.whole = 60;
  const NoGradGuard no_grad;
  const auto positions = [](std::int64_t begin, std::int64_t end) {
    const Tensor column = arange(static_cast<double>(begin), static_cast<double>(end), 1, {.dtype = DType::f64});
    return reshape(column, {1, end - begin, 1, 1});
  };
  take_chunk(state, positions(0, 10), positions(0, 10), pattern);
  EXPECT_EQ(state.positions, (std::vector<std::int64_t>{0, 2, 5, 10}));
  const Tensor sinks = state.tensors[0];
  const KeysInReach keys = take_chunk(state, positions(10, 12), positions(10, 12), pattern);
  EXPECT_EQ(keys.k.to_vector<double>(), (std::vector<double>{0, 1, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(keys.positions.gap_begin, 2);
  EXPECT_EQ(keys.positions.gap, 3);
  EXPECT_EQ(keys.positions.whole, 60);
  EXPECT_EQ(state.positions, (std::vector<std::int64_t>{0, 2, 7, 10, 10, 12}));
  EXPECT_EQ(state.length, 12);
  EXPECT_TRUE(state.tensors[0].is_same(sinks)) << "states share what they keep";
  EXPECT_EQ(state.tensors[3].to_vector<double>(), (std::vector<double>{7, 8, 9}));
}

/// One growing tensor.
struct Buffer {
  Tensor tensor;
  Pattern::Past held = {};
};
Tensor append(Buffer& buffer, std::int64_t length, const Tensor& x, const Pattern& pattern = Pattern::causal()) {
  return append_positions({&buffer.tensor, 1}, buffer.held, length, {x}, pattern)[0];
}

/// Positions [begin, end) of a sequence of (2, *, 3, 4).
Tensor positions(std::int64_t begin, std::int64_t end) {
  Generator generator(5);
  return slice(randn({2, 64, 3, 4}, {}, generator), 1, begin, end);
}

TEST(KvCache, HoldsAppendedPositionsInOrder) {
  Buffer buffer;
  std::int64_t length = 0;
  for (const std::int64_t count : {5, 1, 1, 0, 7, 1, 40, 9}) {
    const Tensor all = append(buffer, length, positions(length, length + count));
    length += count;
    EXPECT_TRUE(bit_equal(all, positions(0, length))) << length;
  }
}

TEST(KvCache, CopiesAGrowingSequenceAConstantNumberOfTimes) {
  const auto allocated = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::cache)].allocated;
  };
  const std::int64_t length = 3000;
  const Tensor one = ones({1, 1, 2, 8});
  const std::uint64_t before = allocated(), whole = static_cast<std::uint64_t>(length) * 2 * 8 * sizeof(float);
  Buffer buffer;
  for (std::int64_t t = 0; t < length; ++t) append(buffer, t, one);
  EXPECT_LT(allocated() - before, 5 * whole);
}

TEST(KvCache, DoesNotWriteASharedBuffer) {
  Buffer buffer;
  append(buffer, 0, positions(0, 6));
  append(buffer, 6, positions(6, 7));  // the buffer has room now
  Buffer branch = buffer;              // a second continuation of the same sequence
  const Tensor left = append(buffer, 7, positions(7, 8)).copy();
  const Tensor right = append(branch, 7, positions(20, 21)).copy();
  EXPECT_TRUE(bit_equal(append(buffer, 8, positions(8, 9)), positions(0, 9)));
  EXPECT_TRUE(bit_equal(left, positions(0, 8)));
  EXPECT_TRUE(bit_equal(slice(right, 1, 7), positions(20, 21)));
}

TEST(KvCache, PassesGradientsToEveryPart) {
  Tensor first = ones({1, 2, 1, 2}).set_requires_grad(), second = ones({1, 1, 1, 2}).set_requires_grad();
  Buffer buffer;
  append(buffer, 0, first);
  const Tensor all = append(buffer, 2, second);
  sum(all * from_data<float>({1, 2, 3, 4, 5, 6}, {1, 3, 1, 2})).backward();
  EXPECT_EQ(first.grad().to_vector<float>(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(second.grad().to_vector<float>(), (std::vector<float>{5, 6}));
}

TEST(KvCache, RefusesATensorThatDoesNotContinueTheSequence) {
  Buffer buffer;
  append(buffer, 0, zeros({2, 3, 1, 4}));
  EXPECT_EQ(error_of<ShapeError>([&] {
              append(buffer, 3, zeros({1, 1, 1, 4}));
            }),
            "[kv_cache] x does not continue the 3 positions that are kept: buffer (2, 3, 1, 4) f32 on cpu, x (1, 1, 1, "
            "4) f32 on cpu");
  EXPECT_THROW(append(buffer, 4, zeros({2, 1, 1, 4})), ShapeError);
  EXPECT_THROW(append(buffer, 3, zeros({2, 1, 1, 4}, {.dtype = DType::f64})), DTypeError);
  EXPECT_EQ(append(buffer, 3, zeros({2, 1, 1, 4})).shape(), (Shape{2, 4, 1, 4}));
}

/// Positions that count from 0, in one number each.
Tensor counted(std::int64_t begin, std::int64_t end) {
  return reshape(arange(static_cast<double>(begin), static_cast<double>(end), 1, {.dtype = DType::f64}),
                 {1, end - begin, 1, 1});
}

TEST(KvCache, KeepsAWindowAndItsSinksInTwiceTheirSize) {
  const Pattern pattern = (Pattern::window(9, 0) | Pattern::sink_tokens(3)) & Pattern::causal();
  for (const std::int64_t prompt : {1, 2, 5, 40}) {
    Buffer buffer;
    append(buffer, 0, counted(0, prompt), pattern);
    for (std::int64_t t = prompt; t < 200; ++t) {
      const std::vector<double> rows = append(buffer, t, counted(t, t + 1), pattern).to_vector<double>();
      std::set<double> held(rows.begin(), rows.end());
      EXPECT_EQ(held.size(), rows.size()) << "a position appears once";
      for (std::int64_t j = 0; j <= t; ++j)
        if (j < 3 || j >= t - 9) {
          EXPECT_TRUE(held.contains(static_cast<double>(j))) << j << " at " << t;
        }
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        const std::int64_t position =
            row < buffer.held.first || buffer.held.recent == 0 ? row : row - buffer.held.first + buffer.held.recent;
        ASSERT_EQ(rows[i], static_cast<double>(position)) << "row " << i << " at " << t;
      }
    }
    EXPECT_LE(buffer.tensor.size(1), 3 + 2 * 9 + 1) << "after a prompt of " << prompt;
  }
}

TEST(KvCache, MovesAWindowWithoutNewMemory) {
  const Pattern window = Pattern::window(15, 0);
  Buffer buffer;
  std::int64_t t = 0;
  const auto steps = [&](std::int64_t end) {
    for (; t < end; ++t) append(buffer, t, counted(t, t + 1), window);
  };
  steps(200);
  const auto requests = [] {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::cache)].allocated;
  };
  const std::uint64_t before = requests();
  steps(2000);
  EXPECT_EQ(requests(), before);
}

TEST(KvCache, DoesNotMoveASharedWindow) {
  const Pattern window = Pattern::window(3, 0);
  Buffer buffer;
  for (std::int64_t t = 0; t < 40; ++t) {
    const Buffer other = buffer;
    const Tensor before = t > 0 ? other.tensor.copy() : Tensor();
    append(buffer, t, counted(t, t + 1), window);
    if (t > 0) {
      EXPECT_TRUE(bit_equal(other.tensor, before)) << t;
    }
  }
}

TEST(KvCache, GivesTokenByTokenTheLogitsOfTheWholeSequenceForEveryPattern) {
  for (const auto& [name, mixer, kept] : mixers_of_every_pattern()) {
    InChunks both(mixer);
    const NoGradGuard no_grad;
    const Tensor whole = both.model.logits(both.tokens);
    for (const std::int64_t prompt : {1, 37}) {
      nn::LanguageModel::State state = both.model.new_state();
      std::vector<Tensor> parts{both.model.logits(slice(both.tokens, 1, 0, prompt), &state)};
      for (std::int64_t t = prompt; t < length; ++t)
        parts.push_back(both.model.logits(slice(both.tokens, 1, t, t + 1), &state));
      EXPECT_TRUE(allclose(cat(parts, 1), whole, 1e-11, 1e-11))
          << name << " after " << prompt << ": " << max_difference(cat(parts, 1), whole);
      for (const nn::SequenceState& layer : state)
        EXPECT_LE(layer.tensors[0].size(1), kept < length ? 2 * kept + 1 : length + length / 2) << name;
    }
  }
}

TEST(KvCache, PassesGradientsToTheKeysOfAWindow) {
  const Pattern window = Pattern::window(2, 0);
  Buffer buffer;
  const Tensor first = counted(0, 9).set_requires_grad(), x = counted(9, 10).set_requires_grad();
  append(buffer, 0, first, window);
  const Tensor all = append(buffer, 9, x, window);
  EXPECT_EQ(all.detach().to_vector<double>(), (std::vector<double>{7, 8, 9}));
  EXPECT_EQ(buffer.held.recent, 7);
  sum(all * all).backward();
  EXPECT_EQ(first.grad().to_vector<double>(), (std::vector<double>{0, 0, 0, 0, 0, 0, 0, 14, 16}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{18}));
}

}  // namespace
}  // namespace poolgrad::attention
