// Text from a checkpoint: from a prompt, and line by line.
#include "examples/sample/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "autograd/operators.h"
#include "examples/support/train.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::examples {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

/// One small model, trained once, with every model option different from its default.
class SampleTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "int f" + std::to_string(i * i % 97) + "() { return 0; }\n";
    write_bytes(folder_->file("text"), text);
    TrainOptions o;
    o.text = {folder_->file("text")};
    o.context = 96;
    o.layers = 2;
    o.width = 32;
    o.kv_heads = 2;
    o.attention.attention = "dilated";
    o.attention.segments = {16, 96};
    o.attention.rates = {1, 2};
    o.steps = 12;
    o.lr = 0.02;
    o.sample = 40;
    o.seed = 5;
    o.dropout = 0.1;
    o.save = folder_->file("a.safetensors");
    std::ostringstream out;
    trained_ = std::make_unique<nn::TrainResult>(train(o, out));
  }
  static void TearDownTestSuite() {
    folder_.reset();
    trained_.reset();
  }

  SampleTest() {
    options_.checkpoint = folder_->file("a.safetensors");
    options_.bytes = 20;
  }

  /// Returns the output for the given `input`; notes_ gets the remaining output.
  std::string run(const SampleOptions& options, const std::string& input = "", bool in_terminal = false,
                  bool out_terminal = false) {
    std::istringstream in(input);
    std::ostringstream out, notes;
    sample(options, {in, out, notes, in_terminal, out_terminal});
    notes_ = notes.str();
    return out.str();
  }
  std::string run_prompt(const std::string& prompt) {
    SampleOptions options = options_;
    options.prompt = prompt;
    return run(options);
  }
  template <class E>
  std::string refusal(const SampleOptions& options, const std::string& input = "", bool in_terminal = false) {
    return error_of<E>([&] { run(options, input, in_terminal); });
  }

  static inline std::unique_ptr<TemporaryFolder> folder_;
  static inline std::unique_ptr<nn::TrainResult> trained_;
  SampleOptions options_;
  std::string notes_;
};

TEST_F(SampleTest, RepeatsTheTrainingSampleFromTheCheckpointAlone) {
  options_.prompt = trained_->prompt;
  options_.bytes = 40;
  options_.sampler.seed = 5;
  EXPECT_EQ(run(options_), trained_->prompt + trained_->sample + "\n");
  EXPECT_THAT(notes_, StartsWith("40 bytes, "));
  EXPECT_THAT(notes_,
              HasSubstr(" of keys and values for " + std::to_string(trained_->prompt.size() + 39) + " positions"));
}

TEST_F(SampleTest, TakesThePromptFromAnOptionAFileOrTheInput) {
  const std::string expected = run_prompt("int f");
  EXPECT_EQ(expected.size(), 5 + 20 + 1u);
  EXPECT_EQ(run(options_, "int f"), expected);
  write_bytes(folder_->file("prompt"), "int f");
  options_.prompt_file = folder_->file("prompt");
  EXPECT_EQ(run(options_, "other"), expected);
  options_.prompt_file = folder_->file("missing");
  EXPECT_EQ(refusal<FileError>(options_), "[--prompt-file] " + options_.prompt_file + ": does not exist");
  options_.prompt_file.clear();
  EXPECT_EQ(refusal<ValueError>(options_), "[sample] the prompt is empty: there is nothing to continue");
}

TEST_F(SampleTest, ContinuesBeyondTheContextInConstantMemory) {
  options_.json = true;
  options_.prompt = std::string(150, 'a');
  options_.bytes = 130;
  const Json answer = Json::parse(run(options_));
  EXPECT_EQ(answer["bytes"], 130);
  EXPECT_EQ(answer["restarts"], 3) << "the prompt is too long, and every 49 bytes 96 are full";
  EXPECT_LE(answer["cache_positions"], 96);
  // Two layers keep keys and values of 2 heads of 8; a growing buffer has up to half of its size in reserve.
  EXPECT_LE(answer["cache_bytes"], 2 * 2 * 16 * sizeof(float) * 96 * 3 / 2);
  EXPECT_GE(answer["cache_bytes"], 2 * 2 * 16 * sizeof(float) * answer["cache_positions"].get<std::size_t>());
}

TEST_F(SampleTest, PrintsJson) {
  options_.json = true;
  options_.prompt = "int";
  options_.sampler.temperature = 0;
  const std::string text = run(options_);
  EXPECT_EQ(notes_, "");
  const Json answer = Json::parse(text);
  EXPECT_EQ(answer["prompt"], "int");
  EXPECT_EQ(answer["bytes"], 20);
  EXPECT_EQ(answer["temperature"], 0.0);
  EXPECT_EQ(answer["device"], "cpu");
  for (const char* key : {"bytes_per_second", "prompt_seconds", "seconds", "peak_live_bytes", "peak_reserved_bytes"})
    EXPECT_GT(answer[key], 0) << key;
  options_.sampler.seed = 77;
  EXPECT_EQ(Json::parse(run(options_))["text"], answer["text"]) << "nothing is drawn";
  options_.prompt.reset();
  EXPECT_THAT(refusal<ValueError>(options_, "", true), HasSubstr("--json needs a text to continue"));
}

TEST_F(SampleTest, CountsTokensOfATokenizer) {
  options_.prompt = "int f";
  options_.json = true;
  Json answer = Json::parse(run(options_));
  EXPECT_EQ(answer["tokens"], 20) << "bytes";
  EXPECT_EQ(answer["tokens_per_second"], answer["bytes_per_second"]);
  options_.json = false;
  run(options_);
  EXPECT_THAT(notes_, testing::Not(HasSubstr("token")));

  TrainOptions o;
  o.text = {folder_->file("text")};
  o.tokenizer = "bpe:300";
  o.context = 64;
  o.layers = 1;
  o.width = 16;
  o.steps = 8;
  o.lr = 0.02;
  o.sample = 0;
  o.save = options_.checkpoint = folder_->file("tokens.safetensors");
  std::ostringstream out;
  train(o, out);
  options_.bytes = 40;
  options_.json = true;
  answer = Json::parse(run(options_));
  EXPECT_EQ(answer["bytes"], 40);
  const double tokens = answer["tokens"];
  EXPECT_GT(tokens, 1);
  EXPECT_LT(tokens, 40) << "of several bytes, or the model has learned nothing";
  EXPECT_LT(answer["tokens_per_second"].get<double>(), answer["bytes_per_second"].get<double>());
  options_.json = false;
  run(options_);
  EXPECT_THAT(notes_, StartsWith(std::to_string(static_cast<int>(tokens)) + " tokens, "));
  EXPECT_THAT(notes_, HasSubstr(" a second; 40 bytes, "));
}

TEST_F(SampleTest, ContinuesEachLineAndItselfAfterAnEmptyOne) {
  options_.sampler.temperature = 0;
  const auto text_of = [&](const std::string& prompt, std::int64_t bytes) {
    options_.bytes = bytes;
    return run_prompt(prompt).substr(prompt.size(), static_cast<std::size_t>(bytes));
  };
  const std::string a = text_of("int f", 40), b = text_of("return", 20);
  options_.bytes = 20;
  EXPECT_EQ(run(options_, "\nint f\n\nreturn\n", true),
            "> > " + a.substr(0, 20) + "\n> " + a.substr(20) + "\n> " + b + "\n> \n");
  EXPECT_THAT(notes_, HasSubstr("context 96, dilated(w 16 96, r 1 2) & causal"));
  EXPECT_EQ(std::count(notes_.begin(), notes_.end(), '\n'), 2 + 3) << "two lines of words, one for each text";
}

TEST_F(SampleTest, StreamsAndStopsAtCtrlC) {
  struct Interrupting : std::stringbuf {
    int sync() override {
      if (++flushes == 4) std::raise(SIGINT);
      return 0;
    }
    int flushes = 0;
  } buffer;
  std::istringstream in("int f");
  std::ostream out(&buffer);
  std::ostringstream notes;
  options_.bytes = 1000000;
  sample(options_, {in, out, notes});
  EXPECT_EQ(buffer.str().size(), 5 + 3 + 1u) << "the prompt is a flush, each byte one, and the end";
  EXPECT_THAT(notes.str(), StartsWith("3 bytes"));
}

TEST_F(SampleTest, ReplacesControlCharactersOnATerminal) {
  options_.prompt = "a\x1b[2J\tb\xc3\xa9\x7f\n";
  EXPECT_THAT(run(options_, "", false, true), StartsWith("a?[2J\tb\xc3\xa9?\n"));
  EXPECT_THAT(run(options_), StartsWith(*options_.prompt));
}

TEST_F(SampleTest, RefusesSizesThatContradictTheCheckpoint) {
  const SafetensorsFile whole = load_safetensors(options_.checkpoint);
  const auto refusals_of = [&](const std::string& setting, const std::string& value) {
    SafetensorsFile file = whole;
    file.metadata.at(setting) = value;
    SampleOptions sampled = options_;
    sampled.checkpoint = folder_->file("changed.safetensors");
    sampled.prompt = "a";
    save_safetensors(sampled.checkpoint, file);
    TrainOptions resumed;
    resumed.text = {folder_->file("text")};
    resumed.resume = sampled.checkpoint;
    std::ostringstream out;
    const std::size_t peak = allocator_for(cpu).statistics().reserved_bytes.current;
    allocator_for(cpu).reset_peaks();
    const std::string refused = refusal<FileError>(sampled);
    EXPECT_EQ(error_of<FileError>([&] { train(resumed, out); }), "[--resume" + refused.substr(refused.find("] ")));
    EXPECT_LE(allocator_for(cpu).statistics().reserved_bytes.peak, peak + (1 << 20)) << "no model was made";
    return refused;
  };
  const auto text_of = [&](const char* model) {
    return "[sample] " + folder_->file("changed.safetensors") + ": its tensors do not match its model of " + model +
           ": ";
  };
  for (const char* layers : {"3", "300000", "4611686018427387904"})
    EXPECT_THAT(refusals_of("layers", layers),
                StartsWith(text_of((std::string(layers) + " layers and width 32").c_str())));
  EXPECT_EQ(refusals_of("width", "65536"),
            text_of("2 layers and width 65536") + "embedding.weight is (256, 32) f32 where (256, 65536) f32 is wanted");
  EXPECT_THAT(refusals_of("width", "16777216"), StartsWith(text_of("2 layers and width 16777216")));
  EXPECT_THAT(refusals_of("kv-heads", "1"), HasSubstr(" is wanted"));
}

TEST_F(SampleTest, RefusesBadCheckpointsAndBadOptions) {
  options_.prompt = "a";
  options_.sampler.top_p = 2;
  EXPECT_EQ(refusal<ValueError>(options_), "[--top-p] it must be in (0, 1], but is 2");
  options_.sampler.top_p = 1;
  options_.sampler.temperature = INFINITY;
  EXPECT_EQ(refusal<ValueError>(options_), "[--temperature] it must be a finite number from 0 on, but is inf");
  options_.sampler.temperature = 1;
  options_.bytes = -1;
  EXPECT_EQ(refusal<ValueError>(options_), "[sample] --bytes must not be negative, but is -1");
  options_.bytes = 1;
  options_.prompt.reset();
  options_.prompt_file = folder_->file("");
  EXPECT_EQ(refusal<FileError>(options_), "[--prompt-file] " + options_.prompt_file + ": is a folder");
  options_.prompt = "a";
  options_.checkpoint = folder_->file("missing.safetensors");
  EXPECT_EQ(refusal<FileError>(options_), "[sample] " + options_.checkpoint + ": does not exist");
  options_.prompt.reset();
  options_.prompt_file.clear();
  EXPECT_THAT(refusal<FileError>(options_), HasSubstr("missing.safetensors")) << "before the prompt is waited for";
  options_.prompt = "a";
  options_.checkpoint = folder_->file("text");
  EXPECT_THAT(refusal<FileError>(options_), HasSubstr(options_.checkpoint));
}

/// A model of random weights, so that no vector is all 1 or 0.
std::unique_ptr<nn::LanguageModel> random_model(const TrainOptions& options, Generator& generator) {
  std::unique_ptr<nn::LanguageModel> model = options.make_model(cpu, generator);
  const NoGradGuard no_grad;
  for (Tensor& parameter : model->parameters())
    parameter.copy_from(parameter + randn(parameter.shape(), parameter.options(), generator) * 0.1);
  model->eval();
  return model;
}

TEST(CastMatrices, ChangesNoBitOfTheLogits) {
  for (const char* const dtype : {"bf16", "f16", "f32"})
    for (const char* const layers : {"1*window:8+sinks+qk-norm,1*causal+nope", "delta,gla", "nsa:8:4:2,causal"})
      for (const bool tied : {false, true}) {
        TrainOptions options;
        options.context = 32;
        options.layers = LayerList(layers);
        options.width = 32;
        options.dtype = dtype;
        options.feed_forward = tied ? "swiglu" : "gelu";
        options.tied_head = tied;
        Generator generator(test_seed());
        const std::unique_ptr<nn::LanguageModel> model = random_model(options, generator);
        const Tensor tokens = randint(0, 256, {2, 32}, {.dtype = DType::i64}, generator);
        const NoGradGuard no_grad;
        const Tensor before = model->logits(tokens);
        model->cast_matrices();
        EXPECT_TRUE(bit_equal(model->logits(tokens), before))
            << dtype << ", " << layers << ", tied " << tied << ", seed " << test_seed();
      }
}

TEST(CastMatrices, KeepsWhatIsAddedBeforeItIsRounded) {
  TrainOptions options;
  options.context = 32;
  options.layers = LayerList("causal+sinks");
  options.width = 32;
  options.dtype = "bf16";
  Generator generator(test_seed());
  const std::unique_ptr<nn::LanguageModel> model = random_model(options, generator);
  model->cast_matrices();
  for (const auto& [name, parameter] : model->named_parameters())
    EXPECT_EQ(parameter.dtype(), parameter.dim() == 1 || name == "embedding.weight" ? DType::f32 : DType::bf16) << name;
}

TEST(SampleOptions, AreReadFromTheCommandLine) {
  SampleOptions o;
  const char* line[] = {"sample",      "a.safetensors", "--top-k=5", "--top-p=0.5",       "--repetition-penalty=1.2",
                        "--seed=7",    "--bytes=9",     "--json",    "--temperature=0.5", "--prompt=a b",
                        "--device=cpu"};
  EXPECT_EQ(parse_sample_options(static_cast<int>(std::size(line)), line, o), -1);
  EXPECT_EQ(o.checkpoint, "a.safetensors");
  EXPECT_EQ(o.prompt, "a b");
  EXPECT_EQ(o.sampler.top_k, 5);
  EXPECT_EQ(o.sampler.top_p, 0.5);
  EXPECT_EQ(o.sampler.repetition_penalty, 1.2);
  EXPECT_EQ(o.sampler.temperature, 0.5);
  EXPECT_EQ(o.sampler.seed, 7u);
  EXPECT_EQ(o.bytes, 9);
  EXPECT_TRUE(o.json);
}

}  // namespace
}  // namespace poolgrad::examples
