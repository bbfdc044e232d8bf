#include "examples/support/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;

TrainOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  TrainOptions options;
  EXPECT_EQ(parse_train_options(static_cast<int>(arguments.size()), arguments.data(), options), -1);
  return options;
}

template <class Change>
std::string refusal(const Change& change) {
  TrainOptions options;
  change(options);
  return error_of<Error>([&] { options.check(); });
}

TEST(TrainOptions, DefaultsAreTheRecipe) {
  const TrainOptions options = parse({});
  EXPECT_NO_THROW(options.check());
  EXPECT_TRUE(options.given.empty());
  EXPECT_EQ(options.context, 4096);
  EXPECT_EQ(options.model().kv_heads, 4);
  EXPECT_EQ(options.pattern(), attention::Pattern::window(255, 0));
}

TEST(TrainOptions, ReadTheCommandLine) {
  const TrainOptions options =
      parse({"--text",      "a",      "b",       "--context", "128",      "--kv-heads", "2",
             "--attention", "causal", "--dtype", "bf16",      "--device", "sim:8GiB",   "--budget",
             "1GiB",        "--lr",   "0.01",    "--quiet",   "--json",   "out.json"});
  EXPECT_EQ(options.text, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.model().context, 128);
  EXPECT_EQ(options.model().kv_heads, 2);
  EXPECT_EQ(options.model().dtype, DType::bf16);
  EXPECT_EQ(options.pattern(), attention::Pattern::causal());
  EXPECT_EQ(options.lr, 0.01);
  EXPECT_TRUE(options.quiet);
  EXPECT_TRUE(options.given.contains("kv-heads"));
  EXPECT_FALSE(options.given.contains("width"));
}

TEST(TrainOptions, AnswerFaultsOfTheCommandLineWithACode) {
  TrainOptions options;
  const char* unknown[] = {"train", "--wdith", "3"};
  const char* word[] = {"train", "--width", "three"};
  ::testing::internal::CaptureStderr();
  EXPECT_GT(parse_train_options(3, unknown, options), 0);
  EXPECT_GT(parse_train_options(3, word, options), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("--wdith"));
}

TEST(TrainOptions, RefuseInOneSentence) {
  EXPECT_EQ(refusal([](auto& o) { o.attention.attention = "cross"; }),
            "[train] --attention must be one of causal, dense, window, dilated, block_sparse, global_local, strided, "
            "random, ring, but is cross");
  EXPECT_EQ(refusal([](auto& o) { o.attention.window = 0; }), "[train] --window must be at least 1, but is 0");
  EXPECT_EQ(refusal([](auto& o) { o.width = 130; }), "[language_model] width 130 is not divisible by 4 heads");
  EXPECT_EQ(refusal([](auto& o) { o.kv_heads = 3; }), "[language_model] 4 heads are not a multiple of 3 kv-heads");
  EXPECT_THAT(refusal([](auto& o) { o.dtype = "f8"; }), HasSubstr("f8"));
  EXPECT_EQ(refusal([](auto& o) { o.batch = 0; }), "[train] --batch must be at least 1, but is 0");
  EXPECT_EQ(refusal([](auto& o) { o.lr = 0; }), "[train] --lr must be positive, but is 0");
  EXPECT_EQ(refusal([](auto& o) { o.dropout = 1; }), "[train] --dropout must be in [0, 1), but is 1");
  EXPECT_EQ(refusal([](auto& o) { o.sample = -1; }), "[train] --steps, --sample and --stop-after must not be negative");
  EXPECT_EQ(refusal([](auto& o) { o.other_text = true; }), "[train] --other-text needs --resume");
  EXPECT_EQ(refusal([](auto& o) {
              o.device = "sim:1GiB";
              o.save = "x";
            }),
            "[train] --device sim:1GiB has no bytes to save or resume");
}

TEST(TrainOptions, TakeOverACheckpointsConfigurationUnlessToldOtherwise) {
  const TrainOptions saved = parse({"--width", "64", "--lr", "0.0123456789", "--attention", "causal"});
  TrainOptions resumed = parse({"--attention", "causal"});
  resumed.adopt(saved.configuration());
  EXPECT_EQ(resumed.width, 64);
  EXPECT_EQ(resumed.lr, 0.0123456789);
  TrainOptions other = parse({"--width", "32"});
  EXPECT_EQ(error_of<ValueError>([&] { other.adopt(saved.configuration()); }),
            "[train] the checkpoint is of another configuration: --width is 64 there, 32 here");
  TrainOptions longer = parse({"--steps", "7", "--lr", "0.5"});
  longer.adopt(saved.configuration());
  EXPECT_EQ(longer.steps, 7) << "a run may go on for longer";
  EXPECT_EQ(longer.lr, 0.5);
  EXPECT_EQ(longer.width, 64);
  auto broken = saved.configuration();
  broken["layers"] = "two";
  EXPECT_EQ(error_of<FileError>([&] { TrainOptions().adopt(broken); }),
            "[train] the checkpoint's layers is malformed: two");
  broken.erase("layers");
  EXPECT_EQ(error_of<FileError>([&] { TrainOptions().adopt(broken); }), "[train] the checkpoint has no layers");
}

}  // namespace
}  // namespace poolgrad::examples
