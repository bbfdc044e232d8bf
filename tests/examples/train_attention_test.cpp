// Training and generation with every kind of attention that the programs offer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "allocator/base/printable.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/views.h"
#include "examples/support/train.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using nn::StepRecord, nn::TrainResult;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

AttentionOptions small(const std::string& name) {
  AttentionOptions options;
  options.attention = name;
  options.window = 12;
  options.segments = {8, 64};
  options.rates = {1, 4};
  options.block = 16;
  options.count = 2;
  options.offsets = {0, 2};
  options.global = 5;
  options.stride = 7;
  options.ring_size = 3;
  options.layout = "striped";
  return options;
}

class TrainAttention : public ::testing::TestWithParam<std::string> {
 protected:
  TrainAttention() {
    std::string text;
    for (int i = 0; i < 500; ++i) text += "f(" + std::to_string(i * i % 97) + ") = " + std::to_string(i) + ";\n";
    write_bytes(folder_.file("text"), text);
    options_.text = {folder_.file("text")};
    options_.context = 60;
    options_.layers = 2;
    options_.width = 16;
    options_.batch = 2;
    options_.steps = 6;
    options_.report = 6;
    options_.sample = 12;
    options_.attention = small(GetParam());
  }
  TrainResult run(const TrainOptions& options) {
    std::ostringstream out;
    return train(options, out);
  }

  TemporaryFolder folder_;
  TrainOptions options_;
};

std::vector<double> losses(const TrainResult& result) {
  std::vector<double> all{result.validation_loss};
  for (const StepRecord& step : result.steps) all.push_back(step.loss);
  return all;
}

TEST_P(TrainAttention, LearnsReproducibly) {
  const TrainResult result = run(options_);
  EXPECT_LT(result.validation_loss, std::log(256.0) - 0.1);
  EXPECT_EQ(result.sample.size(), 12u);
  const TrainResult again = run(options_);
  EXPECT_EQ(losses(again), losses(result));
  EXPECT_EQ(again.sample, result.sample);
}

TEST_P(TrainAttention, ResumesWithTheAttentionOfItsCheckpoint) {
  const TrainResult whole = run(options_);
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 3;
  run(options_);
  TrainOptions resumed;
  resumed.text = options_.text;
  resumed.resume = options_.save;
  resumed.sample = 12;
  const TrainResult rest = run(resumed);
  EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  EXPECT_EQ(rest.sample, whole.sample);
  resumed.attention.block = 32;
  resumed.given = {"block"};
  EXPECT_EQ(error_of<ValueError>([&] { run(resumed); }),
            "[train] the checkpoint has another configuration: --block is 16 there, 32 here");
}

TEST_P(TrainAttention, StepwiseLogitsEqualThoseOfOnePass) {
  const NoGradGuard no_grad;
  Generator generator(1);
  const nn::LanguageModelConfig config{
      .vocabulary = 40, .context = 48, .layers = 2, .width = 16, .heads = 4, .kv_heads = 2};
  nn::LanguageModel model(config, attention::attention_mixer({small(GetParam()).spec(config.context, "train", -1.0)}),
                          {.generator = &generator});
  for (auto& [name, parameter] : model.named_parameters())
    if (name == "head.weight") parameter.copy_from(randn(parameter.shape(), {}, generator));
  const Tensor tokens = randint(0, 40, {1, 48}, {.dtype = DType::i64}, generator);
  const std::vector<double> whole = model.logits(tokens).to_vector<double>();
  auto state = model.new_state();
  std::vector<double> steps;
  for (std::int64_t begin = 0, length = 5; begin < 48; begin += length, length = 1) {  // a prompt, then byte by byte
    const auto part = model.logits(slice(tokens, 1, begin, begin + length), &state).to_vector<double>();
    steps.insert(steps.end(), part.begin(), part.end());
  }
  ASSERT_EQ(steps.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(steps[i], whole[i], 2e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(Every, TrainAttention, ::testing::ValuesIn(attention_names()),
                         [](const auto& name) { return name.param; });

/// A run whose layers differ in every property of an entry.
class TrainLayers : public TrainAttention {
 protected:
  TrainLayers() {
    options_.layers = LayerList(
        "window:12+rope:1e6+sinks,2*causal+nope+softcap:20,strided:7+qk-norm+heads:2,dilated:8/64:1/4+kv-heads:2+rope:"
        "10000:yarn:4:64,block_sparse:16:0/2+rope:500:ntk:2,global_local:12:16:5+heads:8+kv-heads:1");
  }
};

TEST_P(TrainLayers, LearnAndResumeBitForBit) {
  const TrainResult whole = run(options_);
  EXPECT_LT(whole.validation_loss, std::log(256.0) - 0.1);
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 3;
  run(options_);
  TrainOptions resumed;
  resumed.text = options_.text;
  resumed.resume = options_.save;
  resumed.sample = 12;
  const TrainResult rest = run(resumed);
  EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  EXPECT_EQ(rest.sample, whole.sample);
  resumed.layers = LayerList("7*window:12");
  resumed.given = {"layers"};
  EXPECT_EQ(error_of<ValueError>([&] { run(resumed); }),
            "[train] the checkpoint has another configuration: --layers is " + printable(options_.layers.text()) +
                " there, 7*window:12 here");
}

TEST_P(TrainLayers, CheckEachLayerAgainstTheTensorsOfACheckpoint) {
  options_.save = folder_.file("a.safetensors");
  options_.steps = 1;
  run(options_);
  const auto with = [&](const std::string& layers) {
    TrainOptions other = options_;
    other.layers = LayerList(layers);
    return error_of<FileError>([&] { other.check_tensors(options_.save); });
  };
  const std::string text = options_.layers.text();
  EXPECT_EQ(with(text), "no exception");
  EXPECT_THAT(with("2*window,causal,4*window"),
              ::testing::EndsWith("block4.mixer.projection.weight is (32, 16) f32 where (48, 16) f32 is wanted"));
  EXPECT_THAT(with("65000*window"), ::testing::EndsWith("tensors are too few"));
  std::string without_sinks = text;
  without_sinks.erase(text.find("+sinks"), 6);
  EXPECT_THAT(with(without_sinks), ::testing::EndsWith("sinks is not part of it"));
  // The same tensors, except that those of qk-norm are one layer earlier.
  const std::string moved =
      "window:12+rope:1e6+sinks,causal+nope+softcap:20,strided:7+qk-norm+heads:2,causal+nope+softcap:20,dilated:8/64:"
      "1/4+kv-heads:2,block_sparse:16:0/2,global_local:12:16:5+heads:8+kv-heads:1";
  EXPECT_THAT(with(moved), ::testing::HasSubstr("block2.mixer.q_norm.weight is missing"));
  EXPECT_THAT(with(text.substr(0, text.size() - 1) + "8"), ::testing::HasSubstr("block6.mixer.projection.weight is "));
}

TEST_P(TrainLayers, StepwiseLogitsEqualThoseOfOnePass) {
  const NoGradGuard no_grad;
  Generator generator(1);
  options_.dtype = "f64";
  const auto model = options_.make_model(cpu, generator);
  for (Tensor parameter : model->parameters())
    parameter.copy_from(randn(parameter.shape(), parameter.options(), generator) * 0.1);
  const Tensor tokens = randint(0, 256, {1, 60}, {.dtype = DType::i64}, generator);
  const Tensor whole = model->logits(tokens);
  auto state = model->new_state();
  std::vector<Tensor> steps{model->logits(slice(tokens, 1, 0, 5), &state)};
  for (std::int64_t t = 5; t < 60; ++t) steps.push_back(model->logits(slice(tokens, 1, t, t + 1), &state));
  EXPECT_TRUE(allclose(cat(steps, 1), whole, 1e-10, 1e-11));
}

INSTANTIATE_TEST_SUITE_P(Mixed, TrainLayers, ::testing::Values("window"));

TEST_P(TrainAttention, EqualsALayerListWithOneEntryRepeated) {
  const TrainResult by_number = run(options_);
  TrainOptions listed = options_;
  listed.layers = LayerList("2*" + GetParam());
  listed.attention.attention = "window";
  const TrainResult by_list = run(listed);
  EXPECT_EQ(losses(by_list), losses(by_number));
  EXPECT_EQ(by_list.sample, by_number.sample);
}

TEST(TrainGraph, RefusesNativeSparseAttentionWhoseBlocksDifferByStep) {
  TemporaryFolder folder;
  write_bytes(folder.file("text"), std::string(2000, 'a'));
  TrainOptions options;
  options.text = {folder.file("text")};
  options.graph = true;
  const std::string text = "[train] --graph records one step, but nsa selects other blocks in each step";
  std::ostringstream out;
  options.layers = LayerList("window,2*nsa");
  EXPECT_EQ(testing_support::error_of<ValueError>([&] { train(options, out); }), text);
  options.layers = LayerList("2");
  options.attention.attention = "nsa";
  EXPECT_EQ(testing_support::error_of<ValueError>([&] { train(options, out); }), text);
}

TEST(TrainRing, EveryRingReachesTheLossOfOneDevice) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 500; ++i) text += "g(" + std::to_string(i * 7 % 31) + ");\n";
  write_bytes(folder.file("text"), text);
  TrainOptions options;
  options.text = {folder.file("text")};
  options.context = 50;
  options.layers = 1;
  options.width = 16;
  options.steps = 10;
  options.sample = 0;
  options.attention.attention = "causal";
  std::ostringstream out;
  const double expected = train(options, out).validation_loss;
  options.attention.attention = "ring";
  for (const std::int64_t ranks : {1, 2, 5})
    for (const char* layout : {"contiguous", "zigzag", "striped"}) {
      options.attention.ring_size = ranks;
      options.attention.layout = layout;
      EXPECT_NEAR(train(options, out).validation_loss, expected, 1e-4) << ranks << " ranks, " << layout;
    }
}

TEST(TrainRing, RunsEveryKindOnASimulatedDevice) {
  TemporaryFolder folder;
  write_bytes(folder.file("text"), std::string(2000, 'a') + std::string(2000, 'b'));
  TrainOptions options;
  options.text = {folder.file("text")};
  options.context = 64;
  options.layers = 1;
  options.width = 16;
  options.steps = 2;
  options.sample = 4;
  options.device = "sim:1GiB";
  std::ostringstream out;
  for (const std::string& name : attention_names()) {
    options.attention = small(name);
    EXPECT_EQ(train(options, out).steps.back().loss, 0.0) << name;
  }
}

}  // namespace
}  // namespace poolgrad::examples
