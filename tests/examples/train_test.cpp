// The training run as a whole, at a small size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/base/random.h"
#include "allocator/caching_allocator.h"
#include "autograd/operators/arithmetic.h"
#include "examples/support/train.h"
#include "kernels/parallel.h"
#include "nn/training/sampler.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"
#include "tests/examples/small_run.h"

namespace poolgrad::examples {
namespace {

using nn::StepRecord, nn::Trainer, nn::TrainResult;
using ::testing::HasSubstr;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class Train : public SmallRun {
 protected:
  /// Options to resume such a run: the configuration comes from its checkpoint.
  TrainOptions stopped_after_step_9() {
    options_.save = folder_.file("half.safetensors");
    options_.stop_after = 9;
    run();
    TrainOptions resumed;
    resumed.text = options_.text;
    resumed.resume = options_.save;
    resumed.sample = 16;
    return resumed;
  }
};

/// Returns losses, norms and validation losses without times.
std::vector<double> numbers(const TrainResult& result, std::size_t from = 0) {
  std::vector<double> all;
  for (std::size_t i = from; i < result.steps.size(); ++i) {
    all.push_back(result.steps[i].loss);
    all.push_back(result.steps[i].gradient_norm);
    all.push_back(result.steps[i].learning_rate);
  }
  all.push_back(result.validation_loss);
  return all;
}

TEST_F(Train, Learns) {
  options_.dropout = 0;
  options_.steps = 60;
  const TrainResult result = run();
  EXPECT_NEAR(result.steps.front().loss, std::log(256.0), 1e-3);
  EXPECT_LT(result.steps.back().loss, 3.0);
  EXPECT_LT(result.validation_loss, 3.0);
  EXPECT_EQ(result.sample.size(), 16u);
}

TEST_F(Train, TwoRunsAndAnyNumberOfThreadsGiveEqualBits) {
  const std::vector<double> first = numbers(run());
  EXPECT_EQ(numbers(run()), first);
  const int threads = kernels::num_threads();
  kernels::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_EQ(numbers(run()), first);
  kernels::set_num_threads(threads);
  options_.seed = 2;
  EXPECT_NE(numbers(run()), first);
}

TEST_F(Train, AResumedRunHasTheBitsOfAWholeRun) {
  const TrainResult whole = run();
  options_.save = folder_.file("half.safetensors");
  options_.stop_after = 9;
  const TrainResult half = run();
  EXPECT_TRUE(half.interrupted);
  EXPECT_EQ(half.steps.size(), 9u);
  EXPECT_THAT(out_.str(), HasSubstr("--resume " + options_.save));

  TrainOptions resumed;  // the configuration comes from the checkpoint
  resumed.text = options_.text;
  resumed.resume = options_.save;
  resumed.sample = 16;
  const TrainResult rest = run(resumed);
  EXPECT_EQ(rest.steps.front().step, 10);
  EXPECT_EQ(numbers(rest), numbers(whole, 9));
  EXPECT_EQ(rest.sample, whole.sample);
}

TEST_F(Train, ChunksLearnTheSameAndResumeBitForBit) {
  options_.batch = 1;
  const TrainResult at_once = run();
  options_.chunk = 40;
  const TrainResult whole = run();
  for (std::size_t i = 0; i < whole.steps.size(); ++i)
    EXPECT_NEAR(whole.steps[i].gradient_norm, at_once.steps[i].gradient_norm, 1e-3 * at_once.steps[i].gradient_norm)
        << "step " << i + 1;
  EXPECT_NE(numbers(whole), numbers(at_once)) << "sums are rounded in another order";
  TrainOptions resumed = stopped_after_step_9();
  resumed.store_every = 2;  // changes no bit of the results
  EXPECT_EQ(numbers(run(resumed)), numbers(whole, 9));
  resumed.chunk = 48;
  resumed.given = {"chunk"};
  EXPECT_THAT(refusal<ValueError>(resumed), HasSubstr("another configuration: --chunk is 40 there, 48 here"));
}

TEST_F(Train, ScoresPositionsEquallyInChunks) {
  options_.dropout = 0;
  std::vector<std::vector<double>> losses;
  for (const std::int64_t chunk : {0, 40}) {
    options_.chunk = chunk;
    Generator generator(1);
    const auto trainer = options_.make_trainer(nn::read_corpus(options_.text), cpu, generator);
    for (int i = 0; i < 12; ++i) trainer->step();
    losses.push_back(trainer->loss_by_position(2).by_position);
  }
  ASSERT_EQ(losses[1].size(), losses[0].size());
  for (std::size_t i = 0; i < losses[0].size(); ++i) EXPECT_NEAR(losses[1][i], losses[0][i], 1e-3) << i;
  EXPECT_GT(std::abs(losses[0][0] - losses[0][90]), 0.01) << "a model that has learned nothing shows nothing";
}

TEST_F(Train, CheckpointingChangesNoNumberAndMayDifferOnResume) {
  options_.layers = 3;
  const TrainResult whole = run();
  for (const std::string policy : {"block", "sqrt", "revolve:1"}) {
    options_.checkpoint = policy;
    const TrainResult result = run();
    EXPECT_EQ(numbers(result), numbers(whole)) << policy;
    EXPECT_LT(result.peak_live_bytes, whole.peak_live_bytes) << policy;
    EXPECT_THAT(out_.str(), HasSubstr("checkpoints by " + policy));
  }
  TrainOptions resumed = stopped_after_step_9();
  resumed.checkpoint = "block";
  EXPECT_EQ(numbers(run(resumed)), numbers(whole, 9));
}

TEST_F(Train, TilesLearnTheSameInLessMemory) {
  options_.context = 512;
  options_.steps = 10;
  options_.checkpoint = "block";
  const TrainResult whole = run();
  options_.tile = 60;
  const TrainResult tiled = run();
  for (std::size_t i = 0; i < whole.steps.size(); ++i)
    EXPECT_NEAR(tiled.steps[i].loss, whole.steps[i].loss, 1e-3) << "step " << i + 1;
  EXPECT_LT(tiled.peak_live_bytes, whole.peak_live_bytes);
  EXPECT_EQ(numbers(run()), numbers(tiled));
}

TEST_F(Train, RecomputesWithinABudgetAndReportsIt) {
  options_.layers = 4;
  options_.batch = 4;
  options_.dropout = 0.1;
  options_.json = folder_.file("report.json");
  const TrainResult whole = run();
  EXPECT_FALSE(whole.recomputed.has_value());
  const std::uint64_t limit = whole.peak_reserved_bytes * 7 / 10;
  options_.budget = std::to_string(limit);
  const TrainResult limited = run();
  EXPECT_EQ(numbers(limited), numbers(whole));
  EXPECT_LE(limited.peak_reserved_bytes, limit);
  EXPECT_GT(limited.recomputed->recomputed, 0u);
  EXPECT_THAT(out_.str(), HasSubstr("operators run again"));
  EXPECT_THAT(read_bytes(options_.json), HasSubstr("\"operators_run_again\""));
  options_.offload = ::testing::TempDir();
  EXPECT_EQ(numbers(run()), numbers(whole));
}

TEST_F(Train, SelectiveCheckpointsAndOffloadingChangeNoNumber) {
  options_.layers = 3;
  options_.dropout = 0.1;
  const TrainResult whole = run();
  options_.checkpoint = "selective";
  const TrainResult selective = run();
  EXPECT_EQ(numbers(selective), numbers(whole));
  EXPECT_LT(selective.peak_live_bytes, whole.peak_live_bytes);
  for (const std::string policy : {"none", "block"}) {
    options_.checkpoint = policy;
    options_.offload = "";
    const TrainResult kept = run();
    options_.offload = ::testing::TempDir();
    const TrainResult moved = run();
    EXPECT_EQ(numbers(moved), numbers(whole)) << policy;
    EXPECT_LE(moved.peak_live_bytes, kept.peak_live_bytes) << policy;  // equal where the optimizer's step is the peak
    EXPECT_GT(moved.recomputed->offloaded, 0u) << policy;
  }
}

TEST_F(Train, AResumedRunMayChangeItsStepsAndRate) {
  options_.save = folder_.file("done.safetensors");
  run();
  TrainOptions longer;
  longer.text = options_.text;
  longer.resume = options_.save;
  longer.save = folder_.file("longer.safetensors");
  longer.steps = 26;
  longer.given = {"steps"};
  const TrainResult rest = run(longer);
  ASSERT_EQ(rest.steps.size(), 6u);
  EXPECT_EQ(rest.steps.front().step, 21);
  for (const StepRecord& step : rest.steps)
    EXPECT_EQ(step.learning_rate, (nn::Schedule{.peak = 2e-2, .warmup = 13, .steps = 26}.rate(step.step)));
  EXPECT_EQ(nn::read_training_metadata(longer.save)["steps"], "26");

  longer.lr = 1e-4;
  longer.given = {"steps", "lr"};
  EXPECT_EQ(run(longer).steps.front().learning_rate, (nn::Schedule{.peak = 1e-4, .warmup = 13, .steps = 26}.rate(21)));
  longer.steps = 19;
  EXPECT_EQ(refusal<ValueError>(longer),
            "[train] the checkpoint " + longer.resume + " has done 20 steps, --steps is 19");
}

TEST_F(Train, ResumingAFinishedRunReportsNoSpeed) {
  options_.save = folder_.file("over.safetensors");
  const double validation = run().validation_loss;
  TrainOptions over;
  over.text = options_.text;
  over.resume = options_.save;
  EXPECT_EQ(run(over).validation_loss, validation);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("held out "), Not(HasSubstr("tok/s"))));
  for (over.stop_after = 19; over.stop_after <= 20; ++over.stop_after)
    EXPECT_EQ(refusal<ValueError>(over), "[train] --stop-after " + std::to_string(over.stop_after) +
                                             " is in the past: the run resumes after step 20");
}

TEST_F(Train, LearnsWithEveryOptimizerAndResumesBitForBit) {
  for (const char* const name : {"muon", "adamw", "sgd", "lion"}) {
    options_.optimizer = name;
    options_.save.clear();
    options_.stop_after = 0;
    const TrainResult whole = run();
    EXPECT_THAT(out_.str(), HasSubstr("by " + options_.optimizer + "\n"));
    EXPECT_LT(whole.steps.back().loss, whole.steps.front().loss - 1.0) << name;
    EXPECT_EQ(numbers(run(stopped_after_step_9())), numbers(whole, 9)) << name;
    EXPECT_EQ(nn::read_training_metadata(options_.save)["optimizer"], name);
    EXPECT_EQ(std::stod(nn::read_training_metadata(options_.save)["lr"]),
              nn::usual_learning_rate(nn::parse_optimizer(name)));
  }
}

TEST_F(Train, ValidatesAndSavesTheAverageOfItsWeights) {
  const double without = run().validation_loss;
  options_.ema = 0.9;
  const TrainResult whole = run();
  EXPECT_THAT(out_.str(), HasSubstr(", validated with averages of decay 0.9\n"));
  EXPECT_NE(whole.validation_loss, without);
  TrainOptions other = stopped_after_step_9();
  EXPECT_EQ(numbers(run(other)), numbers(whole, 9));
  other.given = {"ema"};
  EXPECT_EQ(refusal<ValueError>(other), "[train] the checkpoint has another configuration: --ema is 0.9 there, 0 here");
  const Tensor used = load_trained_model(other.resume, cpu).model->parameters()[0];
  EXPECT_TRUE(bit_equal(used, load_safetensors(other.resume).at("ema.embedding.weight")));
  EXPECT_FALSE(bit_equal(used, load_safetensors(other.resume).at("model.embedding.weight")));
  options_.ema = 1;
  EXPECT_EQ(refusal<ValueError>(options_), "[train] --ema must be in [0, 1), but is 1");
}

TEST_F(Train, AResumedRunMayChangeItsScheduleButNotItsOptimizer) {
  TrainOptions other = stopped_after_step_9();
  other.optimizer = "lion";
  other.given = {"optimizer"};
  EXPECT_EQ(refusal<ValueError>(other),
            "[train] the checkpoint has another configuration: --optimizer is muon there, lion here");
  other.schedule = "wsd";
  other.given = {"schedule"};
  other.save = folder_.file("stable.safetensors");
  const TrainResult rest = run(other);
  EXPECT_EQ(rest.steps[6].step, 16);
  EXPECT_EQ(rest.steps[6].learning_rate, 2e-2) << "the last step before the decay";
  EXPECT_LT(rest.steps[7].learning_rate, 2e-2);
  EXPECT_EQ(nn::read_training_metadata(other.save)["schedule"], "wsd");
}

TEST_F(Train, AResumedRunMayChangeItsText) {
  options_.save = folder_.file("a.safetensors");
  options_.stop_after = 4;
  run();
  write_bytes(folder_.file("other"), std::string(3000, 'x') + std::string(3000, 'y'));
  TrainOptions other;
  other.text = {folder_.file("other")};
  other.resume = options_.save;
  other.save = folder_.file("b.safetensors");
  other.stop_after = 6;
  EXPECT_THAT(refusal<ValueError>(other), HasSubstr("was trained on another text"));
  other.other_text = true;
  EXPECT_EQ(run(other).steps.front().step, 5);
  other.other_text = false;
  other.resume = other.save;
  other.stop_after = 8;
  EXPECT_EQ(run(other).steps.front().step, 7) << "the new checkpoint is of the new text";
}

/// The effect of one step on a model by its definition, in plain numbers.
struct FirstStep {
  std::map<std::string, std::vector<double>> parameters, first_moments, second_moments;
  double loss = 0, norm = 0;
};

FirstStep first_step_by_hand(Trainer& trainer, const TrainOptions& o, double rate) {
  const nn::Text& train = trainer.corpus().texts[0].train;
  const std::vector<std::int32_t> text = train.read(0, train.size());
  std::vector<std::int64_t> tokens, targets;
  for (std::uint64_t row = 0; row < static_cast<std::uint64_t>(o.batch); ++row) {
    const std::uint64_t start = random_below(o.seed, row, text.size() - static_cast<std::uint64_t>(o.context));
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(o.context); ++i) {
      tokens.push_back(text[start + i]);
      targets.push_back(text[start + i + 1]);
    }
  }
  const Tensor loss =
      trainer.model().loss(from_data(tokens, {o.batch, o.context}), from_data(targets, {o.batch, o.context}));
  loss.backward();
  FirstStep result;
  result.loss = loss.item();
  for (const auto& [name, parameter] : trainer.model().named_parameters())
    for (const double g : parameter.grad().to_vector<double>()) result.norm += g * g;
  result.norm = std::sqrt(result.norm);
  const double scale = std::min(1.0, 1.0 / result.norm);
  for (const auto& [name, parameter] : trainer.model().named_parameters()) {
    const std::vector<double> gradient = parameter.grad().to_vector<double>();
    std::vector<double>& values = result.parameters[name] = parameter.to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double g = gradient[i] * scale;
      values[i] -= rate * ((parameter.dim() > 1 ? 0.1 * values[i] : 0.0) + g / (std::abs(g) + 1e-8));
      result.first_moments[name].push_back(0.1 * g);
      result.second_moments[name].push_back(0.05 * g * g);
    }
  }
  return result;
}

void expect_near(const Tensor& found, const std::vector<double>& expected, const std::string& what) {
  const std::vector<double> values = found.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size()) << what;
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], 1e-9 * std::abs(expected[i]) + 1e-15) << what << " " << i;
}

TEST_F(Train, TheFirstStepFollowsTheClippedUpdate) {
  options_.context = 16;
  options_.width = 16;
  options_.dropout = 0;
  options_.dtype = "f64";
  options_.optimizer = "adamw";
  for (const double deviation : {0.0, 3.0}) {  // of the head: gradient norms below and above the clipping limit
    SCOPED_TRACE("deviation " + std::to_string(deviation));
    const nn::Corpus corpus = nn::read_corpus(options_.text, options_.seed);
    Generator drawn(options_.seed), drawn_again(options_.seed);
    const auto trainer = options_.make_trainer(corpus, cpu, drawn);
    const auto reference = options_.make_trainer(corpus, cpu, drawn_again);
    for (Trainer* each : {trainer.get(), reference.get()}) {
      const NoGradGuard no_grad;
      Generator generator(8);
      for (auto& [name, parameter] : each->model().named_parameters())
        if (name == "head.weight")
          parameter.copy_from(randn(parameter.shape(), parameter.options(), generator) * deviation);
    }
    const double rate = 3e-3 / 10;  // the first of ten steps of warm-up
    const FirstStep expected = first_step_by_hand(*reference, options_, rate);
    EXPECT_EQ(expected.norm > 1.0, deviation > 0) << expected.norm;
    const StepRecord record = trainer->step();
    EXPECT_NEAR(record.loss, expected.loss, 1e-12);
    EXPECT_NEAR(record.gradient_norm, expected.norm, 1e-10);
    EXPECT_DOUBLE_EQ(record.learning_rate, rate);
    trainer->save(folder_.file("step.safetensors"));
    const SafetensorsFile file = load_safetensors(folder_.file("step.safetensors"));
    for (const auto& [name, values] : expected.parameters) {
      expect_near(file.at("model." + name), values, name);
      expect_near(file.at("optimizer." + name + ".first_moment"), expected.first_moments.at(name), name + " first");
      expect_near(file.at("optimizer." + name + ".second_moment"), expected.second_moments.at(name), name + " second");
    }
  }
}

TEST_F(Train, PromptAndSampleFillTheContextAndNeverRunPastIt) {
  options_.steps = 1;
  options_.sample = 300;
  for (const std::int64_t context : {2, 24, 200}) {
    options_.context = context;
    const TrainResult result = run();
    EXPECT_EQ(result.prompt.size(), static_cast<std::size_t>(std::min<std::int64_t>(64, context / 2))) << context;
    EXPECT_EQ(result.prompt.size() + result.sample.size(), static_cast<std::size_t>(context));
  }
}

TEST(SampleText, WritesNoMoreThanThePromptLeavesOfTheContext) {
  Generator generator(1);
  const nn::LanguageModelConfig config{
      .context = 10, .layers = 1, .width = 8, .heads = 2, .kv_heads = 2, .positions = nn::Positions::learned};
  nn::LanguageModel model(config, attention::attention_mixer({AttentionOptions{}.spec(config.context, "train")}),
                          {.generator = &generator});
  for (std::size_t prompt = 1; prompt <= 12; ++prompt)
    for (const std::size_t bytes : {0u, 1u, 5u, 100u}) {
      const std::size_t room = prompt < 10 ? 10 - prompt : 0;
      const std::string text = nn::sample_text(model, std::string(prompt, 'a'), static_cast<std::int64_t>(bytes));
      EXPECT_EQ(text.size(), std::min(bytes, room)) << prompt << ", " << bytes;
    }
}

TEST_F(Train, MakesTheSameRequestsOnASimulatedDevice) {
  const TrainResult real = run();
  options_.device = "sim:1GiB";
  const TrainResult simulated = run();
  EXPECT_EQ(simulated.allocation_hash, real.allocation_hash);
  EXPECT_EQ(simulated.steps.back().loss, 0.0);
  options_.device = "sim:1GiB,like=cpu";
  EXPECT_EQ(run().steps.back().live_bytes, real.steps.back().live_bytes);
}

TEST_F(Train, MakesNoDeviceAllocationFromTheThirdStepOn) {
  options_.context = 1024;
  options_.width = 64;
  options_.json = folder_.file("report.json");
  run();
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  for (const auto& step : report["steps"]) EXPECT_TRUE(step["step"] < 3 || step["device_allocations"] == 0) << step;
  EXPECT_LE(report["peak_reserved_bytes"].get<double>(), 1.10 * report["peak_live_bytes"].get<double>());
}

TEST_F(Train, ReportsInJson) {
  options_.json = folder_.file("report.json");
  const TrainResult result = run();
  const auto report = nlohmann::json::parse(read_bytes(options_.json));
  for (const char* key : {"config", "steps", "validation_loss", "baselines", "tokens_per_second", "peak_live_bytes",
                          "peak_reserved_bytes", "allocation_hash", "bytes_by_category"})
    EXPECT_TRUE(report.contains(key)) << key;
  EXPECT_EQ(report["config"]["width"], 32);
  ASSERT_EQ(report["steps"].size(), 20u);
  for (const char* key : {"step", "loss", "gradient_norm", "learning_rate", "milliseconds", "tokens_per_second",
                          "live_bytes", "reserved_bytes", "device_allocations"})
    EXPECT_TRUE(report["steps"][7].contains(key)) << key;
  EXPECT_DOUBLE_EQ(report["steps"][7]["loss"], result.steps[7].loss);
  EXPECT_GT(report["baselines"]["unigram"], report["baselines"]["trigram"]);
  EXPECT_GT(report["bytes_by_category"]["parameter"], 0);
  EXPECT_EQ(report["bytes_by_category"]["scores"], 0);
  EXPECT_THAT(out_.str(), HasSubstr("wrote    report " + options_.json));
}

TEST_F(Train, PrintsOnlyTheReportToStandardOutput) {
  options_.json = "-";
  const TrainResult result = run();
  EXPECT_EQ(nlohmann::json::parse(out_.str())["steps"].size(), result.steps.size());
}

TEST_F(Train, PrintsALinePerIntervalUnlessQuiet) {
  run();
  for (const char* part : {"step  1/20  loss 5.5", "step  5/20", "step 20/20", "|g|", "tok/s", "reserved", "ETA 0:00",
                           "held out", "trigram", "sample", "parameter"})
    EXPECT_THAT(out_.str(), HasSubstr(part));
  EXPECT_EQ(out_.str().find("step  6/20"), std::string::npos);
  options_.quiet = true;
  run();
  EXPECT_EQ(out_.str(), "");
}

TEST_F(Train, RunsInEveryFloatingDtype) {
  options_.dropout = 0;
  const double expected = run().validation_loss;
  for (const char* dtype : {"f64", "bf16", "f16"}) {
    options_.dtype = dtype;
    EXPECT_NEAR(run().validation_loss, expected, dtype == std::string("f64") ? 1e-3 : 0.05) << dtype;
  }
}

TEST_F(Train, AutocastLearnsLikeF32InLessMemory) {
  options_.dropout = 0;
  const TrainResult exact = run();
  for (const char* autocast : {"bf16", "f16"}) {
    options_.autocast = autocast;
    EXPECT_NEAR(run().validation_loss, exact.validation_loss, 0.02) << autocast;
    EXPECT_LT(run().bytes_by_category[static_cast<std::size_t>(Category::query)],
              exact.bytes_by_category[static_cast<std::size_t>(Category::query)]);
    EXPECT_THAT(out_.str(), HasSubstr(std::string("f32 with products in ") + autocast));
  }
}

TEST_F(Train, RecomputesInTheOriginalScope) {
  for (const char* autocast : {"bf16", "f16"}) {
    options_.autocast = autocast;
    const std::vector<double> kept = numbers(run());
    for (const char* checkpoint : {"block", "selective", "revolve"}) {
      TrainOptions again = options_;
      again.checkpoint = checkpoint;
      EXPECT_EQ(numbers(run(again)), kept) << checkpoint;
    }
    TrainOptions chunked = options_;
    chunked.chunk = 32;
    chunked.dropout = 0;
    TrainOptions whole = options_;
    whole.dropout = 0;
    EXPECT_NEAR(run(chunked).validation_loss, run(whole).validation_loss, 0.02);
  }
}

TEST_F(Train, F16ReportsAndResumesItsLossScale) {
  const TrainOptions base = options_;
  for (const bool scoped : {false, true}) {
    options_ = base;
    (scoped ? options_.autocast : options_.dtype) = "f16";
    options_.loss_scale = "1073741824";  // more than f16 holds
    options_.json = folder_.file("report.json");
    options_.metrics = folder_.file("steps.csv");
    const TrainResult whole = run();
    EXPECT_THAT(out_.str(),
                AllOf(HasSubstr(", loss scaled by 1073741824 at first"), HasSubstr("  scale "), HasSubstr(" skipped")));
    const auto report = nlohmann::json::parse(read_bytes(options_.json));
    EXPECT_EQ(report["config"]["loss_scale"], 0x1p30);
    EXPECT_EQ(report["steps"][0]["skipped_steps"], 0) << "the head begins at 0, and all before it has no gradient";
    EXPECT_EQ(report["steps"][1]["loss_scale"], 0x1p30);
    EXPECT_EQ(report["steps"][1]["skipped_steps"], 1);
    EXPECT_TRUE(report["steps"][1]["gradient_norm"].is_null());
    EXPECT_GT(report["steps"][19]["skipped_steps"], 1);
    EXPECT_LT(report["steps"][19]["skipped_steps"], 15);
    EXPECT_LT(report["steps"][19]["loss_scale"], 0x1p29);
    EXPECT_THAT(read_bytes(options_.metrics), HasSubstr(",device_allocations,loss_scale,skipped_steps,"));
    options_.json.clear(), options_.metrics.clear();
    const TrainResult rest = run(stopped_after_step_9());
    EXPECT_EQ(rest.steps.back().loss_scale, whole.steps.back().loss_scale);
    EXPECT_EQ(rest.steps.back().skipped_steps, whole.steps.back().skipped_steps);
    EXPECT_EQ(rest.steps.back().loss, whole.steps.back().loss);
    EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  }
}

TEST_F(Train, ScalesTheLossOnlyForF16ByDefault) {
  const auto scale = [&](const char* dtype, const char* autocast, const char* loss_scale) {
    TrainOptions o = options_;
    o.dtype = dtype, o.autocast = autocast, o.loss_scale = loss_scale;
    const auto scaler = o.loss_scaler();
    return scaler ? scaler->initial : 0.0;
  };
  EXPECT_EQ(scale("f32", "none", "auto"), 0);
  EXPECT_EQ(scale("bf16", "none", "auto"), 0);
  EXPECT_EQ(scale("f32", "bf16", "auto"), 0);
  EXPECT_EQ(scale("f16", "none", "auto"), 65536);
  EXPECT_EQ(scale("f32", "f16", "auto"), 65536);
  EXPECT_EQ(scale("f16", "none", "none"), 0);
  EXPECT_EQ(scale("f16", "none", "1024"), 1024);
}

TEST_F(Train, RefusesIncompatiblePrecisions) {
  const auto refused = [&](const char* dtype, const char* autocast, const char* loss_scale) {
    TrainOptions o = options_;
    o.dtype = dtype, o.autocast = autocast, o.loss_scale = loss_scale;
    return refusal<ValueError>(o);
  };
  EXPECT_EQ(refused("f32", "f32", "auto"), "[train] --autocast must be none, bf16 or f16, but is f32");
  EXPECT_EQ(refused("bf16", "f16", "auto"), "[train] --autocast f16 needs activations of f32, but --dtype is bf16");
  EXPECT_EQ(refused("bf16", "none", "1024"),
            "[train] --loss-scale 1024 is only for f16, but --dtype is bf16 and --autocast is none");
  for (const char* scale : {"large", "0", "-4", "0.5", "1e300", "nan", "inf", "12x", ""})
    EXPECT_EQ(refused("f16", "none", scale),
              std::string("[train] --loss-scale must be auto, none or a number from 1 to 2^64, but is ") + scale);
}

TEST_F(Train, RefusesTooSmallABudgetAndASmallerRunWorks) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::size_t budget = pool.budget();
  const auto live = pool.statistics().requested_bytes.current;
  options_.budget = "8MiB";
  TrainOptions large = options_;
  large.context = 4096;
  large.width = 128;
  EXPECT_THAT(refusal<OutOfMemoryError>(large), HasSubstr("8.00 MiB"));
  EXPECT_EQ(pool.statistics().requested_bytes.current, live);
  EXPECT_EQ(pool.budget(), budget);
  EXPECT_LE(run().peak_reserved_bytes, std::size_t{8} << 20);
}

TEST_F(Train, RefusesBadTextsContextsAndDevices) {
  TrainOptions o = options_;
  o.text = {folder_.file("missing")};
  EXPECT_EQ(refusal<FileError>(o), "[--text] the text " + o.text[0] + " does not exist");
  o = options_;
  o.context = 1 << 20;
  EXPECT_THAT(refusal<ValueError>(o), HasSubstr("[train] the text is shorter than the context: "));
  o = options_;
  o.device = "tpu";
  EXPECT_EQ(refusal<ValueError>(o),
            "[train] --device must be cpu, cuda:N, auto, sim:SIZE or sim:SIZE,like=cpu, but is tpu");
  o = options_;
  o.checkpoint = "all";
  EXPECT_EQ(
      refusal<ValueError>(o),
      "[train] --checkpoint must be none, selective, block, sqrt, revolve, revolve:SLOTS, budget or auto, but is all");
  o.checkpoint = "budget";
  EXPECT_EQ(refusal<ValueError>(o), "[train] --checkpoint budget needs --budget");
  o = options_;
  o.offload = "/nowhere";
  EXPECT_THAT(refusal<FileError>(o), HasSubstr("[--offload] cannot make a file in the folder /nowhere: "));
  o = options_;
  o.optimizer = "adam";
  EXPECT_EQ(refusal<ValueError>(o), "[--optimizer] it must be adamw, sgd, lion or muon, but is adam");
  o = options_;
  o.schedule = "step";
  EXPECT_EQ(refusal<ValueError>(o), "[--schedule] it must be cosine, linear, constant or wsd, but is step");
  o = options_;
  o.budget = "much";
  EXPECT_THAT(refusal<ValueError>(o), HasSubstr("[--budget] not a number of bytes: 'much'"));
}

TEST_F(Train, RefusesBadCheckpoints) {
  options_.save = folder_.file("a.safetensors");
  options_.stop_after = 1;
  run();
  const std::string good = read_bytes(options_.save);
  TrainOptions o = options_;
  o.save.clear();
  o.resume = folder_.file("b.safetensors");

  EXPECT_THAT(refusal<FileError>(o), HasSubstr(o.resume));
  write_bytes(o.resume, good.substr(0, good.size() - 100));
  EXPECT_THAT(refusal<FileError>(o), HasSubstr(o.resume));
  write_bytes(o.resume, "\xff\xff\xff\xff\xff\xff\xff\x7f{}" + good.substr(8));
  EXPECT_THAT(refusal<FileError>(o), HasSubstr(o.resume));
  o.resume = options_.save;
  o.width = 64;
  o.given = {"width"};
  EXPECT_EQ(refusal<ValueError>(o), "[train] the checkpoint has another configuration: --width is 32 there, 64 here");
  o = options_;
  o.save.clear();
  o.resume = options_.save;
  write_bytes(folder_.file("other"), std::string(5000, 'x'));
  o.text = {folder_.file("other")};
  EXPECT_EQ(refusal<ValueError>(o), "[train] the checkpoint " + o.resume + " was trained on another text than " +
                                        o.text[0] + ": give its text by --text, or accept this one by --other-text");
}

TEST_F(Train, AFullDiskLeavesTheOldCheckpoint) {
  options_.save = folder_.file("a.safetensors");
  options_.stop_after = 1;
  run();
  const std::string before = read_bytes(options_.save);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string text = refusal<FileError>(options_);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(text, HasSubstr(options_.save));
  EXPECT_EQ(read_bytes(options_.save), before);
  EXPECT_EQ(folder_.names(), (std::vector<std::string>{"a.safetensors", "text"}));
}

}  // namespace
}  // namespace poolgrad::examples
