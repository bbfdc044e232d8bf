// The input of a run: tokens of several bytes, and texts with weights, on every device and in every program. Also files
// that cannot be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/error.h"
#include "examples/compare/compare.h"
#include "examples/plan/plan.h"
#include "examples/sample/sample.h"
#include "examples/train/run_page.h"
#include "tests/examples/small_run.h"
#include "tests/examples/train_program.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing_support::read_bytes;
using testing_support::write_bytes;

class TrainText : public TrainRuns {
 protected:
  TrainText() {
    std::string code, verse;
    for (int i = 0; i < 1500; ++i) code += "int f" + std::to_string(i * i % 97) + "() { return 0; }\n";
    for (int i = 0; i < 900; ++i)
      verse += "the quick brown fox jumps over the lazy dog " + std::to_string(i % 7) + "\n";
    write_bytes(folder_.file("code"), code);
    write_bytes(folder_.file("verse"), verse);
    options_.text = {folder_.file("code")};
    options_.tokenizer = "bpe:300";
    options_.context = 64;
    options_.layers = 1;
    options_.width = 32;
    options_.heads = 2;
    options_.attention.window = 24;
    options_.optimizer = "adamw";
    options_.lr = 0.01;
    options_.steps = 20;
    options_.report = 10;
    options_.sample = 12;
    options_.seed = 3;
  }

  std::string sampled(const std::string& prompt, std::int64_t bytes, bool json = false) {
    SampleOptions o;
    o.checkpoint = options_.save;
    o.prompt = prompt;
    o.bytes = bytes;
    o.json = json;
    std::istringstream in;
    std::ostringstream out, notes;
    sample(o, {in, out, notes});
    return out.str();
  }
};

TEST_F(TrainText, LearnsTokensAndReportsLossesPerByte) {
  options_.json = folder_.file("run.json");
  const nn::TrainResult result = run(options_);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("tokens   300 of bpe:300: "), HasSubstr(" after 1 token, "),
                                HasSubstr(" nats per byte (unigram ")));
  const nlohmann::json report = nlohmann::json::parse(read_bytes(options_.json));
  EXPECT_EQ(report["config"]["tokenizer"], "bpe:300");
  EXPECT_EQ(report["config"]["vocabulary"], 300);
  // At first every token has equal probability; these tokens have between two and six bytes on average.
  EXPECT_LT(result.steps.front().loss, std::log(300.0) / 2);
  EXPECT_GT(result.steps.front().loss, std::log(300.0) / 6);
  EXPECT_LT(result.validation_loss, result.steps.front().loss - 0.3);
  EXPECT_GT(result.validation_bytes, 5 * 64 * 2) << "five batches of 64 tokens";
  options_.tokenizer = "bytes";
  EXPECT_EQ(run(options_).baselines.trigram, result.baselines.trigram) << "counted in bytes either way";
}

TEST_F(TrainText, ResumesATokenizedRunBitForBit) {
  const nn::TrainResult whole = run(options_);
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 9;
  run(options_);
  TrainOptions resumed;
  resumed.text = options_.text;
  resumed.resume = options_.save;
  resumed.sample = options_.sample;
  const nn::TrainResult rest = run(resumed);
  EXPECT_EQ(rest.steps.back().loss, whole.steps.back().loss);
  EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  EXPECT_EQ(rest.sample, whole.sample);
  resumed.given = {"tokenizer"};
  EXPECT_EQ(refusal<ValueError>(resumed),
            "[train] the checkpoint has another configuration: --tokenizer is bpe:300 there, bytes here");
  resumed.given.clear();
  resumed.text = {folder_.file("verse")};
  resumed.other_text = true;
  EXPECT_THAT(run(resumed).prompt, HasSubstr("the quick")) << "in the tokens of the old text";
}

TEST_F(TrainText, ReportsAVocabularyTooLargeForTheText) {
  options_.tokenizer = "bpe:5000";
  options_.steps = 1;
  run(options_);
  EXPECT_THAT(out_.str(), MatchesRegex("(.|\n)*tokens   [0-9]+ of bpe:5000 \\(no other pair comes twice\\): (.|\n)*"));
  options_.tokenizer = "bpe:100";
  EXPECT_EQ(refusal<ValueError>(options_),
            "[train] --tokenizer must be bytes, or bpe:N with N from 257 to 65536, but is bpe:100");
  options_.tokenizer = "bpe:300";
  options_.context = 30000;
  EXPECT_THAT(refusal<ValueError>(options_), HasSubstr(" tokens to train on, a context of 30000"));
}

TEST_F(TrainText, SamplesExactlyTheRequestedBytes) {
  options_.save = folder_.file("a.safetensors");
  run(options_);
  const std::string text = sampled("int f", 41);
  EXPECT_EQ(text.size(), 5 + 41 + 1u) << "the last token is cut off where the bytes end";
  EXPECT_EQ(sampled("int f", 20), text.substr(0, 25) + "\n");
  const auto answer = nlohmann::json::parse(sampled("caf\xc3\xa9 \xff", 150, true));
  EXPECT_EQ(answer["bytes"], 150);
  EXPECT_LT(answer["cache_positions"], 64);
  EXPECT_GT(answer["restarts"], -1);
}

TEST_F(TrainText, WeightsSetTheDrawsAndAreSaved) {
  const std::string code = folder_.file("code"), verse = folder_.file("verse");
  options_.tokenizer = "bytes";
  options_.text = {code + "=3", verse};
  options_.save = folder_.file("half.safetensors");
  options_.json = folder_.file("run.json");
  const nn::TrainResult whole = run(options_);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("75.0 % of the windows from " + code), HasSubstr("25.0 % of the windows"),
                                HasSubstr(" of " + verse + "\n")));
  const auto by_text = nlohmann::json::parse(read_bytes(options_.json))["loss_by_text"];
  ASSERT_EQ(by_text.size(), 2u);
  EXPECT_EQ(by_text[1]["text"], verse);
  EXPECT_NEAR(0.75 * by_text[0]["loss"].get<double>() + 0.25 * by_text[1]["loss"].get<double>(), whole.validation_loss,
              1e-12);
  options_.stop_after = 9;
  run(options_);
  TrainOptions resumed;
  resumed.text = options_.text;
  resumed.resume = options_.save;
  EXPECT_EQ(run(resumed).steps.back().loss, whole.steps.back().loss);
  resumed.text = {code + "=2", verse};
  EXPECT_EQ(refusal<ValueError>(resumed),
            "[train] the checkpoint " + options_.save + " was trained on texts of weights 3,1, not 2,1");
  resumed.text = {code + "=0", verse};
  EXPECT_EQ(refusal<ValueError>(resumed),
            "[--text] the weight of the text " + code + " must be a number from 1e-9 to 1e9, but is 0");
}

TEST_F(TrainText, ThePageShowsTokens) {
  options_.html = folder_.file("run.html");
  options_.steps = 3;
  write_page_of_run(options_);
  run();
  EXPECT_THAT(read_bytes(options_.html),
              AllOf(HasSubstr("tokens of context, at most"), HasSubstr("tokens a second"), HasSubstr("Attention maps"),
                    HasSubstr("' takes "), HasSubstr("<dd>bpe:300</dd>")));
}

TEST_F(TrainText, ThePageShowsUtf8) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Gr\u00fc\u00dfe aus K\u00f6ln\x01\n";
  write_bytes(folder_.file("verse"), text);
  options_.text = {folder_.file("verse")};
  options_.tokenizer = "bytes";
  options_.html = folder_.file("run.html");
  options_.steps = 1;
  write_page_of_run(options_);
  run();
  EXPECT_THAT(out_.str(), HasSubstr("  | Gr\u00fc\u00dfe aus K\u00f6ln?\n  | "));
  EXPECT_THAT(read_bytes(options_.html), HasSubstr("<pre><i>Gr\u00fc\u00dfe aus K\u00f6ln\\x01\n"));
}

TEST_F(TrainText, ComparesKindsOfAttentionInTokens) {
  CompareOptions compare;
  compare.train = options_;
  compare.train.attention.attention = "window,causal";
  compare.train.given = {"steps"};
  const auto all = run_compare(compare, out_).kinds;
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(out_.str(), HasSubstr("by tokens of context"));
  EXPECT_LT(all[0].result.validation_loss, std::log(300.0) / 2) << "nats per byte";
}

TEST_F(TrainText, APlanInTokensPredictsReservedBytesExactly) {
  options_.steps = 20;
  options_.checkpoint = "none";
  PlanOptions plan;
  plan.train = options_;
  plan.train.text.clear();
  plan.memory = "64MiB";
  plan.json = "-";
  run_plan(plan, out_);
  const auto row = nlohmann::json::parse(out_.str())["rows"][0];
  options_.budget = plan.memory;
  const auto real = run_train_program(options_, folder_);
  ASSERT_TRUE(real["error"].is_null()) << real;
  for (const char* name : {"peak_live_bytes", "peak_reserved_bytes", "bytes_by_category"})
    EXPECT_EQ(row[name], real[name]) << name;
  options_.device = "sim:64MiB,like=cpu";
  const auto simulated = run_train_program(options_, folder_);
  ASSERT_TRUE(simulated["error"].is_null()) << simulated;
  for (const char* name : {"peak_live_bytes", "peak_reserved_bytes", "bytes_by_category", "allocation_hash"})
    EXPECT_EQ(simulated[name], real[name]) << name;
}

TEST_F(TrainText, FileNamesNeedNotBeUtf8) {
  const std::string name = folder_.file("caf\xe9");
  write_bytes(name, read_bytes(folder_.file("code")));
  options_.text = {name};
  options_.save = name + ".safetensors";
  EXPECT_EQ(run(options_).steps.size(), 20u);
  EXPECT_FALSE(sampled("int ", 4).empty());

  CompareOptions compared;
  compared.train = options_;
  compared.train.save.clear();
  compared.train.attention.attention = "window,causal";
  compared.train.given = {"steps"};
  compared.json = folder_.file("compared.json");
  for (const CompareResult comparison = run_compare(compared, out_); const Compared& one : comparison.kinds)
    EXPECT_EQ(one.result.error, "");
}

TEST_F(TrainText, IsJudgedByAValidationTextOfItsOwnWholeAtEachLine) {
  for (const char* tokenizer : {"bytes", "bpe:300"}) {
    options_.tokenizer = tokenizer;
    options_.validate = folder_.file("verse");
    const nn::TrainResult result = run();
    EXPECT_THAT(out_.str(), HasSubstr(", validated on " + options_.validate));
    EXPECT_NEAR(result.validations.back().second, result.validation_loss, 1e-5) << "all of it at each line";
    EXPECT_GE(result.validation_bytes, std::ssize(read_bytes(options_.validate)) - 8) << tokenizer;
    EXPECT_THAT(result.prompt, HasSubstr("quick brown"));
    options_.text = {folder_.file("code") + "=3", folder_.file("third")};
    std::string third;
    for (int i = 0; i < 2000; ++i) third += "x" + std::to_string(i) + "\n";
    write_bytes(folder_.file("third"), third);
    EXPECT_TRUE(run().by_text.empty()) << "there is one validation text";
    options_.text = {folder_.file("code")};
  }
  options_.validate = options_.text[0];
  EXPECT_THAT(refusal<ValueError>(options_), HasSubstr("is part of two texts"));
  options_.validate = folder_.file("none");
  EXPECT_EQ(refusal<FileError>(options_), "[--text, --validate] the text " + options_.validate + " does not exist");
}

TEST_F(TrainText, RefusesUnwritableOutputsBeforeTraining) {
  TrainOptions options = options_;
  options.save = "/dev/null";  // no checkpoint can be written there
  EXPECT_EQ(refusal<FileError>(options), "[write] /dev/null: not a regular file");
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("step ")));
  using Files = std::initializer_list<std::string TrainOptions::*>;
  for (const auto file : Files{&TrainOptions::save, &TrainOptions::json, &TrainOptions::metrics, &TrainOptions::html}) {
    options = options_;
    options.*file = folder_.file("nowhere/file.csv");
    EXPECT_EQ(refusal<FileError>(options), "[train] cannot write " + options.*file + ": its folder does not exist");
    EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("step ")));
  }
}

TEST_F(TrainText, AFailedOutputDoesNotStopTheOthers) {
  options_.json = "/dev/full";
  options_.metrics = folder_.file("steps.csv");
  EXPECT_EQ(refusal<FileError>(options_), "[train] cannot write /dev/full: No space left on device");
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("held out"), HasSubstr("steps.csv"), ::testing::Not(HasSubstr("/dev/full"))));
  EXPECT_THAT(read_bytes(options_.metrics), HasSubstr("\n20,"));
}

TEST_F(TrainText, AFailedPageUpdateDoesNotStopTheRun) {
  int lines = 0;
  options_.reported = [&](nn::Trainer&, nn::TrainResult&, bool finished) {
    if (!finished && ++lines == 1) throw FileError("full");
  };
  EXPECT_EQ(run().steps.size(), 20u);
  EXPECT_GT(lines, 1);
}

}  // namespace
}  // namespace poolgrad::examples
