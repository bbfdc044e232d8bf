// Runs that start from the weights of a checkpoint.
#include <gmock/gmock.h>

#include <fstream>

#include "allocator/error.h"
#include "examples/sample/sample.h"
#include "tests/attention/modules/llama.h"
#include "tests/examples/small_run.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainInit : public SmallRun {
 protected:
  TrainInit() {
    options_.save = folder_.file("first.safetensors");
    options_.layers = 2;
    options_.ema = 0.9;
    options_.dropout = 0;
  }
  /// A run of no steps from the checkpoint, by default with the checkpoint's model.
  TrainOptions start() const {
    TrainOptions o;
    o.text = options_.text;
    o.init = options_.save;
    o.batch = options_.batch;
    o.sample = options_.sample;
    o.steps = 0;
    return o;
  }
};

TEST_F(TrainInit, GeneratesTheCheckpointSampleBeforeTraining) {
  for (const double decay : {0.9, 0.0}) {
    options_.ema = decay;
    const nn::TrainResult first = run();
    for (const double own_decay : {0.0, 0.5}) {
      TrainOptions o = start();
      o.ema = own_decay;
      EXPECT_EQ(run(o).sample, first.sample) << decay << ", then " << own_decay;
      EXPECT_THAT(out_.str(),
                  AllOf(HasSubstr("start    15 tensors from " + options_.save + "\n"), Not(HasSubstr("not "))));
    }
  }
}

TEST_F(TrainInit, UsesOwnScheduleOptimizerAndContext) {
  const nn::TrainResult first = run();
  TrainOptions o = start();
  o.steps = 6;
  o.optimizer = "lion";
  o.context = 192;
  o.layers = LayerList("window:24+rope:10000:yarn:2:96,causal");
  o.given = {"context", "layers"};
  const nn::TrainResult second = run(o);
  EXPECT_EQ(second.steps.front().step, 1);
  EXPECT_LT(second.steps.front().learning_rate, second.steps[2].learning_rate);
  EXPECT_LT(second.steps.front().loss, 0.5 * (first.steps.front().loss + first.steps.back().loss));
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("context 192"), HasSubstr("rope base 10000 yarn 2; causal"),
                                HasSubstr("start    15 tensors"), Not(HasSubstr("not "))));
}

TEST_F(TrainInit, PrintsTensorsNotTaken) {
  run();
  TrainOptions o = start();
  o.kv_heads = 1;
  o.given = {"kv-heads"};
  run(o);
  EXPECT_THAT(out_.str(), HasSubstr("start    13 tensors from " + options_.save +
                                    "\n         not block0.mixer.projection.weight: (64, 32) f32 there, (48, 32) f32 "
                                    "here\n         not block1.mixer.projection.weight: "));
  o = start();
  o.layers = 3;
  o.given = {"layers"};
  run(o);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("not block2.norm1.weight: none there, (32,) f32 here"), HasSubstr("nor ")));
}

TEST_F(TrainInit, RefusesModelMismatch) {
  run();
  const auto refused = [&](const std::string& option, const auto& change) {
    TrainOptions o = start();
    o.given = {option};
    change(o);
    return refusal<ValueError>(o);
  };
  const std::string other = "[train] the checkpoint has another configuration: ";
  EXPECT_EQ(refused("width", [](auto& o) { o.width = 64; }), other + "--width is 32 there, 64 here");
  EXPECT_EQ(refused("heads", [](auto& o) { o.heads = 2; }), other + "--heads is 4 there, 2 here");
  EXPECT_EQ(refused("tokenizer", [](auto& o) { o.tokenizer = "bpe:300"; }),
            other + "--tokenizer is bytes there, bpe:300 here");
  EXPECT_EQ(refused("resume", [](auto& o) { o.resume = o.init; }),
            "[train] --init starts a new run and --resume continues one: give only one");
  EXPECT_EQ(refused("save", [](auto& o) { o.save = o.init; }),
            "[train] --save " + options_.save + " would replace the checkpoint of --init");
  TrainOptions doubles = start();
  doubles.dtype = "f64";
  doubles.given = {"dtype"};
  EXPECT_EQ(refusal<FileError>(doubles), "[--init] " + options_.save + ": no tensor fits the model");
}

TEST_F(TrainInit, RefusesFileMismatchBeforeAllocating) {
  run();
  std::string bytes = testing_support::read_bytes(options_.save);
  const std::size_t width = bytes.find("\"width\":\"32\"");
  ASSERT_NE(width, std::string::npos);
  bytes.replace(width, 12, "\"width\":\"96\"");
  testing_support::write_bytes(options_.save, bytes);
  EXPECT_THAT(refusal<FileError>(start()), HasSubstr("its model of 2 layers and width 96"));
  testing_support::write_bytes(options_.save, bytes.substr(0, bytes.size() - 9));
  EXPECT_THAT(refusal<FileError>(start()), AllOf(HasSubstr("[--init] "), HasSubstr(options_.save)));
}

TEST_F(TrainInit, RefusesInvalidFeedForwardLayersAndNorms) {
  const auto refused = [&](const auto& change) {
    TrainOptions o = options_;
    change(o);
    return refusal<ValueError>(o);
  };
  EXPECT_EQ(refused([](auto& o) { o.hidden = -1; }), "[train] --hidden must be from 0 to 2^40, but is -1");
  EXPECT_EQ(refused([](auto& o) { o.norm_eps = -1; }), "[train] --norm-eps must be a number from 0 on, but is -1");
  EXPECT_EQ(refused([](auto& o) { o.feed_forward = "relu"; }),
            "[train] --feed-forward must be gelu, gelu_exact or swiglu, but is relu");
}

/// A folder in Hugging Face's format with a model of bytes.
class TrainFromLlama : public SmallRun {
 protected:
  TrainFromLlama() {
    llama_.draw(3);
    llama_.write(path());
    TrainOptions o;
    o.text = options_.text;
    o.init = path();
    o.steps = 0;
    o.sample = 8;
    options_ = o;
  }
  std::string path() const { return folder_.file("llama"); }

  Llama llama_{.vocabulary = 256, .base = 1e17};
};

TEST_F(TrainFromLlama, ContinuesTheModelAndSavesAnOrdinaryCheckpoint) {
  options_.save = folder_.file("next.safetensors");
  options_.steps = 4;
  options_.lr = 1e-3;
  const nn::TrainResult result = run();
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("start    17 tensors from " + path() + "\n"), Not(HasSubstr("not "))));
  EXPECT_LT(result.steps.back().loss, result.steps.front().loss);
  const TrainedModel before = load_trained_model(path(), cpu), after = load_trained_model(options_.save, cpu);
  EXPECT_EQ(after.options.feed_forward, "swiglu");
  EXPECT_EQ(after.options.hidden, 10);
  EXPECT_EQ(after.options.norm_eps, 1e-3);
  EXPECT_EQ(after.model->parameter_count(), before.model->parameter_count());
}

TEST_F(TrainFromLlama, ReportsTensorsOfLayersThatAreLeftOut) {
  options_.layers = LayerList("causal+rope:1e17");
  options_.context = 32;
  options_.given = {"layers", "context"};
  run();
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("start    10 tensors"), HasSubstr("context 32"),
                                HasSubstr("not model.layers.1.input_layernorm.weight: (24,) f32 there, none here")));
}

TEST_F(TrainFromLlama, RefusesAListOfLayersWithOtherPositions) {
  options_.layers = LayerList("2*causal");
  options_.given = {"layers"};
  EXPECT_EQ(refusal<ValueError>(options_),
            "[--layers] the rotary positions of --init have base 1e+17, but those of a layer have base 10000: give "
            "rope:BASE or nope in each entry");
}

TEST_F(TrainFromLlama, RefusesAnotherShapeAndAnotherUse) {
  options_.kv_heads = 4;
  options_.given = {"kv-heads"};
  EXPECT_EQ(refusal<FileError>(options_),
            "[--init] " + path() +
                ": block0.mixer.projection.weight (made of model.layers.0.self_attn.q_proj.weight, "
                "model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.v_proj.weight) is (48, 24) f32 "
                "there, but (72, 24) f32 in the model");
  options_ = {};
  llama_.layers = std::int64_t{1} << 40;
  std::ofstream(path() + "/config.json") << llama_.config();
  EXPECT_EQ(testing_support::error_of<FileError>([&] { options_of(path()); }),
            "[load] " + path() + ": programs take up to 65536 layers, but it has 1099511627776");
  options_.resume = path();
  EXPECT_THAT(refusal<FileError>(options_), HasSubstr("llama: not a regular file"));
  Llama small{.vocabulary = 19};
  small.draw(1);
  small.write(path());
  options_ = {};
  options_.init = path();
  EXPECT_EQ(refusal<FileError>(options_),
            "[--init] " + path() + ": programs take a vocabulary of 256 to 65536 tokens, but it has 19");
}

TEST_F(TrainFromLlama, SamplesTheMostProbableBytes) {
  for (const std::int64_t vocabulary : {256, 300}) {
    llama_.vocabulary = vocabulary;
    llama_.draw(7);
    llama_.write(path());
    SampleOptions options;
    options.checkpoint = path();
    options.prompt = "int";
    options.bytes = 3;
    options.sampler.temperature = 0;
    std::istringstream in;
    std::ostringstream out, notes;
    sample(options, {in, out, notes});
    std::vector<std::int64_t> tokens{'i', 'n', 't'};
    for (int i = 0; i < 3; ++i) {
      const std::vector<double> logits = llama_.logits(tokens);
      const auto last = logits.end() - vocabulary;
      tokens.push_back(std::max_element(last, last + 256) - last);  // tokens beyond the bytes are not written
    }
    EXPECT_EQ(out.str(), std::string(tokens.begin(), tokens.end()) + "\n");
  }
}

}  // namespace
}  // namespace poolgrad::examples
