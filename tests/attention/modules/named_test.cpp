#include "attention/modules/named.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "nn/training/sampler.h"
#include "tensor/grad_mode.h"
#include "tests/attention/modules/module_support.h"
#include "tests/attention/pattern/sparse_types.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using namespace testing_support;
using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

template <class Expected>
bool is_a(const std::unique_ptr<AttentionCore>& core) {
  const AttentionCore& made = *core;
  return typeid(made) == typeid(Expected);
}

DilatedFactoryOptions short_segments() { return {.segment_lengths = {8, 16}, .dilation_rates = {1, 2}}; }

TEST(CreateDilatedAttention, CreatesTheNamedType) {
  EXPECT_TRUE(is_a<DilatedAttention>(create_dilated_attention("standard")));
  EXPECT_TRUE(is_a<ImprovedDilatedAttention>(create_dilated_attention("improved")));
  EXPECT_TRUE(is_a<RingDilatedAttention>(create_dilated_attention("ring")));
  EXPECT_TRUE(is_a<BlockSparseDilatedAttention>(create_dilated_attention("block_sparse")));
  EXPECT_TRUE(is_a<BlockSparseRingDilatedAttention>(create_dilated_attention("block_sparse_ring")));
  const LocalGroup group(1);
  DilatedFactoryOptions between_processes;
  between_processes.ring.communicator = group.communicator(0);
  EXPECT_TRUE(is_a<RingDilatedAttention>(create_dilated_attention("distributed", between_processes)));
}

TEST(CreateDilatedAttention, HasTheSegmentsOfTheOriginalAsDefaults) {
  const auto core = create_dilated_attention("improved");
  EXPECT_EQ(static_cast<ImprovedDilatedAttention&>(*core).pattern(), Pattern::dilated({2048, 4096, 8192}, {1, 2, 4}));
}

TEST(CreateDilatedAttention, ForwardsEveryOption) {
  for (const std::string type : {"standard", "improved", "ring"}) {
    DilatedFactoryOptions options = short_segments();
    options.dilated = {.mode = DilatedMode::grouped, .require_divisible = true};
    options.core = {.scale = 0.5};
    const auto core = create_dilated_attention(type, options);
    const ModuleInputs inputs = make_inputs(of_length(16)), odd = make_inputs(of_length(15));
    const Tensor want =
        attend(inputs.q, inputs.k, inputs.v, Pattern::dilated({8, 16}, {1, 2}, options.dilated), {.scale = 0.5}).out;
    EXPECT_TRUE(allclose((*core)(inputs.q, inputs.k, inputs.v), want, 1e-11, 1e-12)) << type;
    EXPECT_THAT(error_of<ValueError>([&] { (*core)(odd.q, odd.k, odd.v); }), HasSubstr("[")) << type;
  }
}

TEST(CreateDilatedAttention, AutoChoosesTheTypeFromTheOptions) {
  EXPECT_TRUE(is_a<RingDilatedAttention>(create_dilated_attention()));
  DilatedFactoryOptions options = short_segments();
  options.sparse = SparsePatternConfig{};
  EXPECT_TRUE(is_a<BlockSparseRingDilatedAttention>(create_dilated_attention("auto", options)));
}

TEST(CreateDilatedAttention, ListsTheKnownTypesInItsError) {
  EXPECT_EQ(error_of<ValueError>([] { create_dilated_attention("faster"); }),
            "[create_dilated_attention] unknown type 'faster'; known are auto, standard, improved, ring, distributed, "
            "block_sparse, block_sparse_ring");
  EXPECT_EQ(error_of<ValueError>([] { create_dilated_attention("distributed"); }),
            "[create_dilated_attention] distributed needs a communicator");
}

TEST(CreateMultiheadDilatedAttention, HasTheSizesOfTheOriginalAsDefaults) {
  const auto layer = create_multihead_dilated_attention();
  EXPECT_EQ(layer->heads(), 12);
  const auto parameters = layer->named_parameters();
  EXPECT_EQ(parameters.front().first, "projection.weight");
  EXPECT_EQ(parameters.front().second.shape(), (Shape{3 * 768, 768}));
  EXPECT_EQ(parameters.back().first, "output.bias");
}

TEST(CreateMultiheadDilatedAttention, GivesEqualResultsForEveryTypeOfTheSamePattern) {
  const nn::ParameterOptions f64{.dtype = DType::f64};
  DilatedFactoryOptions options = short_segments();
  options.ring.ring_size = 3;
  const auto first = create_multihead_dilated_attention("standard", 12, 4, options, {.causal = true}, f64);
  Generator generator(3);
  const Tensor x = randn({2, 37, 12}, {.dtype = DType::f64}, generator);
  const Tensor want = first->forward(x);
  sum(square(want)).backward();
  for (const std::string type : {"improved", "ring"}) {
    const auto other = create_multihead_dilated_attention(type, 12, 4, options, {.causal = true}, f64);
    other->load(first->named_parameters());
    const Tensor got = other->forward(x);
    EXPECT_TRUE(allclose(got, want, 1e-11, 1e-12)) << type;
    sum(square(got)).backward();
    const auto left = first->named_parameters(), right = other->named_parameters();
    for (std::size_t n = 0; n < left.size(); ++n)
      EXPECT_TRUE(allclose(right[n].second.grad(), left[n].second.grad(), 1e-9, 1e-10)) << type << left[n].first;
  }
}

TEST(CreateMultiheadDilatedAttention, RefusesFewerHeadsThanGroups) {
  DilatedFactoryOptions options;
  options.dilated.mode = DilatedMode::grouped;
  EXPECT_THAT(error_of<ValueError>([&] { create_multihead_dilated_attention("auto", 8, 2, options); }),
              HasSubstr("in grouped mode every branch needs a head: 2 heads, 3 branches"));
  EXPECT_THAT(error_of<ValueError>([] { create_multihead_dilated_attention("auto", 10, 4); }),
              HasSubstr("width is not divisible by heads"));
  EXPECT_THAT(error_of<ValueError>([] { create_multihead_dilated_attention("auto", 8, 0); }),
              HasSubstr("sizes must be at least 1"));
}

TEST(CreateBlockSparseAttention, CreatesTheNamedVariant) {
  EXPECT_TRUE(is_a<BlockSparseDilatedAttention>(create_block_sparse_attention("base")));
  EXPECT_TRUE(is_a<HierarchicalBlockSparse>(create_block_sparse_attention("hierarchical")));
  EXPECT_TRUE(is_a<AdaptiveBlockSparseAttention>(create_block_sparse_attention("adaptive")));
  EXPECT_TRUE(is_a<BlockSparseRingDilatedAttention>(create_block_sparse_attention("ring")));
  EXPECT_TRUE(is_a<BlockSparseRingDilatedAttention>(create_block_sparse_attention()));
  EXPECT_TRUE(is_a<AdaptiveBlockSparseAttention>(create_block_sparse_attention("adaptive_standard")));
}

TEST(CreateBlockSparseAttention, HasPresets) {
  const auto pattern = [](const std::string& preset) {
    const auto core = create_block_sparse_attention(preset);
    return static_cast<PatternAttention&>(*core).pattern(1 << 16);
  };
  EXPECT_EQ(pattern("local"), Pattern::local_window(64, 512));
  EXPECT_EQ(pattern("dilated"), Pattern::dilated_sparse(64, {1, 2, 4}));
  EXPECT_EQ(pattern("global_local"), Pattern::global_local(64, 512, 64));
  const auto sparse = create_block_sparse_attention("ultra_sparse");
  const double density = static_cast<PatternAttention&>(*sparse).density(1 << 16);
  EXPECT_LE(density, 0.01);
  EXPECT_GT(density, 0.008);
}

TEST(CreateMultiheadDilatedAttention, RunsOnSimulatedDevicesWithTheSameRequestsEachTime) {
  configure_simulated_device(7, std::size_t{64} << 20);
  const Device sim{DeviceType::sim, 7};
  for (const std::string type : {"standard", "improved", "ring", "block_sparse", "block_sparse_ring"}) {
    DilatedFactoryOptions options = short_segments();
    options.ring.ring_size = 2;
    const auto layer = create_multihead_dilated_attention(type, 16, 4, options, {.causal = true}, {.device = sim});
    const auto step = [&] {
      allocator_for(sim).reset_sequence_hash();
      mean(square(layer->forward(zeros({2, 70, 16}, {.device = sim})))).backward();
      layer->zero_grad();
      return allocator_for(sim).sequence_hash();
    };
    const std::uint64_t first = step();
    EXPECT_EQ(step(), first) << type;
  }
}

TEST(CreateBlockSparseAttention, ListsTheKnownVariantsInItsError) {
  EXPECT_EQ(error_of<ValueError>([] { create_block_sparse_attention("best"); }),
            "[create_block_sparse_attention] unknown variant 'best'; known are auto, base, hierarchical, adaptive, "
            "ring; presets local, dilated, global_local, ultra_sparse, adaptive_standard");
  EXPECT_THAT(error_of<ValueError>([] { create_block_sparse_attention("multihead"); }),
              HasSubstr("multihead is create_multihead_block_sparse_attention()"));
  BlockSparseFactoryOptions options;
  options.sparse = SparsePatternConfig{};
  EXPECT_EQ(error_of<ValueError>([&] { create_block_sparse_attention("local", options); }),
            "[create_block_sparse_attention] preset 'local' brings its own pattern");
}

TEST(CreateMultiheadBlockSparseAttention, RunsForwardAndBackwardForEveryVariant) {
  Generator generator(2);
  const Tensor x = randn({2, 70, 16}, {}, generator);
  for (const std::string variant : {"base", "hierarchical", "adaptive", "ring", "adaptive_standard", "ultra_sparse"}) {
    BlockSparseFactoryOptions options;
    options.selection.block_size = 16;
    options.ring.ring_size = 2;
    const auto layer = create_multihead_block_sparse_attention(variant, 16, 4, options, {.causal = true});
    const Tensor out = layer->forward(x);
    EXPECT_EQ(out.shape(), x.shape()) << variant;
    mean(square(out)).backward();
    for (const auto& [name, parameter] : layer->named_parameters())
      EXPECT_TRUE(parameter.grad().defined()) << variant << " " << name;
  }
}

nn::LanguageModelConfig tiny_model(nn::Positions positions) {
  return {.vocabulary = 11,
          .context = 64,
          .layers = 2,
          .width = 16,
          .heads = 4,
          .kv_heads = 2,
          .positions = positions,
          .dtype = DType::f64};
}

TEST(Mixers, ContinueASequenceFromItsState) {
  const NoGradGuard no_grad;
  for (const nn::Positions positions : {nn::Positions::rope, nn::Positions::learned})
    for (const std::string type : {"standard", "improved", "block_sparse"}) {
      nn::LanguageModel model(tiny_model(positions), dilated_mixer(type, short_segments()));
      Generator generator(6);
      for (Tensor parameter : model.parameters())
        parameter.copy_from(randn(parameter.shape(), parameter.options(), generator) * 0.5);
      const Tensor tokens = randint(0, 11, {2, 40}), whole = model.logits(tokens);
      auto state = model.new_state();
      std::vector<Tensor> pieces{model.logits(slice(tokens, 1, 0, 33), &state)};
      for (std::int64_t t = 33; t < 40; ++t) pieces.push_back(model.logits(slice(tokens, 1, t, t + 1), &state));
      EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-9, 1e-10)) << type;
    }
}

TEST(Mixers, ADensityContinuesWithThePatternOfTheContext) {
  const NoGradGuard no_grad;
  for (const auto type : {SparsePatternType::local_window, SparsePatternType::dilated_sparse,
                          SparsePatternType::strided, SparsePatternType::random})
    for (const std::string variant : {"base", "ring"}) {
      BlockSparseFactoryOptions options;
      options.sparse = {.pattern_type = type, .block_size = 16, .sparsity_ratio = 0.6};
      nn::LanguageModel model(tiny_model(nn::Positions::rope), block_sparse_mixer(variant, options));
      Generator generator(6);
      for (Tensor parameter : model.parameters())
        parameter.copy_from(randn(parameter.shape(), parameter.options(), generator) * 0.5);
      const Tensor tokens = randint(0, 11, {2, 64}, {.dtype = DType::i64}, generator), whole = model.logits(tokens);
      auto state = model.new_state();
      std::vector<Tensor> pieces;
      for (const auto& [begin, end] : {std::pair{0, 20}, {20, 21}, {21, 40}, {40, 41}, {41, 64}})
        pieces.push_back(model.logits(slice(tokens, 1, begin, end), &state));
      EXPECT_TRUE(allclose(cat(pieces, 1), whole, 1e-9, 1e-10)) << to_string(type) << " " << variant;
    }
}

TEST(CreateMultiheadBlockSparseAttention, ADensityRefusesToContinueBeyondTheContext) {
  const auto layer = create_multihead_block_sparse_attention("ultra_sparse", 16, 4, {}, {.causal = true});
  const auto refusal = [&](std::int64_t context) {
    nn::SequenceState state;
    state.context = context;
    return error_of<ValueError>([&] { layer->forward(zeros({1, 9, 16}), &state); });
  };
  EXPECT_EQ(refusal(0),
            "[block_sparse] sparsity_ratio gives each length its own pattern, so a sequence cannot continue beyond the "
            "context of its state: 9 positions, context 0");
  EXPECT_THAT(refusal(8), HasSubstr("9 positions, context 8"));
  EXPECT_EQ(refusal(9), "no exception");
}

TEST(Mixers, WithAdaptiveBlocksSampleTextWithoutAState) {
  nn::LanguageModelConfig config = tiny_model(nn::Positions::rope);
  config.vocabulary = 256;
  nn::LanguageModel model(config, block_sparse_mixer("adaptive", {.selection = {.block_size = 16}}));
  EXPECT_FALSE(model.continues());
  EXPECT_EQ(nn::sample_text(model, "what was read", 20).size(), 20u);
  auto state = model.new_state();
  EXPECT_EQ(error_of<ValueError>([&] {
              model.logits(zeros({1, 3}, {.dtype = DType::i64}), &state);
            }),
            "[multihead] this attention needs the whole sequence at once and cannot continue an earlier one");
}

TEST(Mixers, UseTheParameterGeneratorForDropoutByDefault) {
  const CoreOptions dropping{.dropout = 0.5};
  const BlockSelectionOptions small{.block_size = 16};
  DilatedFactoryOptions dilated = short_segments();
  dilated.core = dropping;
  const std::pair<const char*, nn::MixerFactory> mixers[] = {
      {"attention", attention_mixer(Pattern::causal(), {}, dropping)},
      {"dilated", dilated_mixer("improved", dilated)},
      {"block-sparse", block_sparse_mixer("base", {.core = dropping})},
      {"adaptive", block_sparse_mixer("adaptive", {.selection = small, .core = dropping})}};
  const Tensor tokens = randint(0, 11, {2, 40});
  for (const auto& [name, mixer] : mixers) {
    Generator generator(3);
    nn::LanguageModel model(tiny_model(nn::Positions::rope), mixer, {.generator = &generator});
    const std::uint64_t others = default_generator().state().offset, before = generator.state().offset;
    model.logits(tokens);
    EXPECT_GT(generator.state().offset, before) << name;
    EXPECT_EQ(default_generator().state().offset, others) << name;
  }
  Generator own(4), generator(3);
  dilated.core.generator = &own;
  nn::LanguageModel model(tiny_model(nn::Positions::rope), dilated_mixer("improved", dilated),
                          {.generator = &generator});
  const std::uint64_t before = generator.state().offset;
  model.logits(tokens);
  EXPECT_EQ(generator.state().offset, before);
  EXPECT_GT(own.state().offset, 0u);
}

TEST(Mixers, TrainAModelWithEveryBlockSparseVariant) {
  for (const std::string variant : {"base", "hierarchical", "adaptive", "ring"}) {
    BlockSparseFactoryOptions options;
    options.selection.block_size = 16;
    nn::LanguageModel model(tiny_model(nn::Positions::rope), block_sparse_mixer(variant, options));
    const Tensor tokens = randint(0, 11, {2, 41});
    const Tensor loss = model.loss(slice(tokens, 1, 0, 40), slice(tokens, 1, 1));
    EXPECT_NEAR(loss.item(), std::log(11.0), 1e-9) << variant;  // heads start at 0
    EXPECT_NO_THROW(loss.backward()) << variant;
  }
}

}  // namespace
}  // namespace poolgrad::attention
