// The file from which a run resumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "nn/training/checkpoint.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::TemporaryFolder;

/// A model, its optimizer, and a run that can stop at any step.
struct SmallRun {
  explicit SmallRun(std::uint64_t seed)
      : generator(seed), model(3, 2, {}, {.generator = &generator}), optimizer(model.named_parameters()) {}

  void step() {
    Generator data(99, static_cast<std::uint64_t>(done++));
    model.zero_grad();
    sum(square(dropout(model(randn({4, 3}, {}, data)), 0.5, generator))).backward();
    optimizer.step();
  }
  void save(const std::string& path) const {
    save_training_state(
        path, model, optimizer,
        {.step = done, .data_position = 4 * done, .generator = generator.state(), .metadata = {{"width", "3"}}});
  }

  Generator generator;
  Linear model;
  AdamW optimizer;
  std::int64_t done = 0;
};

/// Gives the tensor `name` of the file, or an additional one, a dtype that poolgrad lacks.
void make_foreign(const std::string& path, const std::string& name) {
  SafetensorsFile file = load_safetensors(path);
  file.unsupported.clear();
  std::erase_if(file.tensors, [&](const auto& entry) { return entry.first == name; });
  file.tensors.emplace_back(name, zeros({2}, {.dtype = DType::i32}));
  save_safetensors(path, file);
  std::ifstream in(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  bytes.replace(bytes.find("I32"), 3, "U32");
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(TrainingState, AModelLoadsDespiteForeignDtypesElsewhere) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun whole(1), other(2);
  whole.step();
  whole.save(path);
  make_foreign(path, "statistics.of.another.program");
  load_trained_model(path, other.model);
  EXPECT_TRUE(bit_equal(other.model.parameters()[0], whole.model.parameters()[0]));
  EXPECT_THAT(error_of<FileError>([&] { load_training_state(path, other.model, other.optimizer); }),
              HasSubstr("'statistics.of.another.program' was left out: its dtype U32"))
      << "a run that goes on would lose it";
  make_foreign(path, "model.weight");
  EXPECT_THAT(error_of<FileError>([&] { load_trained_model(path, other.model); }),
              HasSubstr("'model.weight' was left out: its dtype U32"));
}

TEST(StartingWeights, FillTheTensorsThatFitAndNameTheOthers) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  Generator generator(1);
  const ParameterOptions options{.generator = &generator};
  const auto model_of = [&](std::int64_t outputs) {
    return std::make_unique<Sequential>(std::make_unique<Linear>(3, 2, LinearOptions{}, options),
                                        std::make_unique<Linear>(2, outputs, LinearOptions{}, options));
  };
  const auto first = model_of(2), other = model_of(5), foreign = model_of(2);
  SGD optimizer(first->named_parameters(), {});
  save_training_state(path, *first, optimizer, {});
  const Tensor before = other->parameters()[2].copy();
  const StartingWeights weights = load_starting_weights(path, *other);
  EXPECT_EQ(weights.taken, 2);
  ASSERT_EQ(weights.left.size(), 2u);
  EXPECT_EQ(weights.left[0].name, other->named_parameters()[2].first);
  EXPECT_EQ(weights.left[0].there + " " + weights.left[0].here, "(2, 2) f32 (5, 2) f32");
  EXPECT_TRUE(bit_equal(other->parameters()[0], first->parameters()[0]));
  EXPECT_TRUE(bit_equal(other->parameters()[2], before)) << "what does not fit keeps its values";

  EXPECT_EQ(load_starting_weights(path, *foreign).taken, 4);
  EXPECT_TRUE(bit_equal(foreign->parameters()[3], first->parameters()[3]));
  Linear alone(7, 7);
  EXPECT_EQ(error_of<FileError>([&] { load_starting_weights(path, alone); }),
            "[load] " + path + ": no tensor fits the model");
}

TEST(TrainingState, ContinuesBitForBit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun whole(1), resumed(2);
  for (int i = 0; i < 3; ++i) whole.step();
  whole.save(path);
  const TrainingState state = load_training_state(path, resumed.model, resumed.optimizer);
  EXPECT_EQ(state.step, 3);
  EXPECT_EQ(state.data_position, 12);
  EXPECT_EQ(state.metadata, (std::map<std::string, std::string>{{"width", "3"}}));
  EXPECT_EQ(read_training_metadata(path), state.metadata);
  resumed.generator.set_state(state.generator);
  resumed.done = state.step;
  for (int i = 0; i < 3; ++i) {
    whole.step();
    resumed.step();
  }
  EXPECT_TRUE(bit_equal(whole.model.weight(), resumed.model.weight()));
  EXPECT_TRUE(bit_equal(whole.model.bias(), resumed.model.bias()));
}

TEST(TrainingState, KeepsStepsPerParameterAndReadsFilesWithoutThem) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun saved(1), loaded(2);
  for (int i = 0; i < 2; ++i) saved.step();
  saved.model.zero_grad();
  Tensor(saved.model.weight()).set_grad(ones({2, 3}));
  saved.optimizer.step();
  saved.save(path);
  load_training_state(path, loaded.model, loaded.optimizer);
  EXPECT_EQ(loaded.optimizer.steps(), 3);
  EXPECT_THAT(loaded.optimizer.parameter_steps(), ElementsAre(3, 2));

  SafetensorsFile file = load_safetensors(path);
  file.metadata.erase("poolgrad.parameter_steps");  // as in older files
  save_safetensors(path, file);
  load_training_state(path, loaded.model, loaded.optimizer);
  EXPECT_THAT(loaded.optimizer.parameter_steps(), ElementsAre(3, 3));

  const Tensor before = loaded.model.weight().copy();
  const auto load = [&] { load_training_state(path, loaded.model, loaded.optimizer); };
  saved.model.weight().detach().fill(5);
  for (const char* counts : {"3", "3,4", "3,2,1"}) {
    file.metadata["poolgrad.parameter_steps"] = counts;
    file.tensors.clear();
    for (const auto& [name, tensor] : saved.model.named_parameters())
      file.tensors.emplace_back("model." + name, tensor);
    for (const auto& [name, tensor] : saved.optimizer.state()) file.tensors.emplace_back("optimizer." + name, tensor);
    save_safetensors(path, file);
    EXPECT_THAT(error_of<ValueError>(load), HasSubstr("the steps of ")) << counts;
  }
  for (const char* counts : {"3,", "a", "3;2"}) {
    file.metadata["poolgrad.parameter_steps"] = counts;
    save_safetensors(path, file);
    EXPECT_THAT(error_of<FileError>(load), HasSubstr("parameter_steps is not a count: ")) << counts;
  }
  EXPECT_TRUE(bit_equal(loaded.model.weight(), before));
}

TEST(TrainingState, HoldsBuffersAndTheMomentaOfEveryOptimizer) {
  struct Counting : Module {
    Counting() {
      weight = constant_parameter("weight", {2, 2}, 1.0, {});
      count = register_buffer("count", zeros({}, {.dtype = DType::i64}));
    }
    Tensor weight, count;
  } saved, loaded;
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  Muon from(saved.named_parameters()), to_resume(loaded.named_parameters());
  saved.weight.set_grad(ones({2, 2}));
  from.step();
  saved.count.fill(7);
  save_training_state(path, saved, from, {.step = 1});
  load_training_state(path, loaded, to_resume);
  EXPECT_EQ(loaded.count.item(), 7);
  for (const auto& [model, optimizer] : {std::pair{&saved, &from}, std::pair{&loaded, &to_resume}}) {
    model->weight.set_grad(from_data<float>({1, 2, 3, 4}, {2, 2}));
    optimizer->step();
  }
  EXPECT_TRUE(bit_equal(saved.weight.detach(), loaded.weight.detach()));
}

TEST(TrainingState, RefusesOtherFilesWithoutChanges) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun run(1);
  const Tensor before = run.model.weight().copy();
  const auto load = [&] { load_training_state(path, run.model, run.optimizer); };

  run.model.save_file(path);
  EXPECT_THAT(error_of<FileError>(load), HasSubstr("not a training state of poolgrad"));
  save_safetensors(path, {run.model.named_tensors(), {{"poolgrad.format", "training-state-2"}}});
  EXPECT_THAT(error_of<FileError>(load), HasSubstr("a training state of another version, training-state-2"));

  SmallRun other(2);
  other.step();
  other.save(path);
  SafetensorsFile file = load_safetensors(path);
  file.metadata["poolgrad.step"] = "-7";
  save_safetensors(path, file);
  EXPECT_THAT(error_of<FileError>(load), HasSubstr("step is not a count: -7"));
  file.metadata.erase("poolgrad.step");
  save_safetensors(path, file);
  EXPECT_THAT(error_of<FileError>(load), HasSubstr("no step in the metadata"));
  file.metadata["poolgrad.step"] = "1";
  file.tensors[0].second = zeros({2, 4});
  save_safetensors(path, file);
  EXPECT_THAT(error_of<ValueError>(load), HasSubstr("weight is (2, 4) f32 on cpu where the module has (2, 3)"));

  other.save(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  EXPECT_THAT(error_of<FileError>(load), HasSubstr(path));
  EXPECT_TRUE(bit_equal(run.model.weight(), before));
  EXPECT_EQ(run.optimizer.steps(), 0);
}

TEST(TrainingState, ChecksAveragesBeforeAnyChange) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun saved(1), run(2);
  const EMA average(saved.model);
  save_training_state(path, saved.model, saved.optimizer, {.averages = &average});
  const SafetensorsFile whole = load_safetensors(path);
  const Tensor before = run.model.weight().copy();
  EMA own(run.model);
  const auto put = [&](const std::string& name, const Tensor& tensor) {
    SafetensorsFile file = whole;
    for (auto& [key, there] : file.tensors)
      if (key == name) there = tensor;
    save_safetensors(path, file);
  };
  for (const Tensor& wrong : {ones({1, 3}), ones({5}), ones({2, 3}, {.dtype = DType::f64})}) {
    put("ema.weight", wrong);
    EXPECT_THAT(error_of<ValueError>([&] { load_trained_model(path, run.model); }),
                HasSubstr("[load] the average does not fit the module: ema.weight is "));
    EXPECT_TRUE(bit_equal(run.model.weight(), before));
  }
  put("ema.updates", full({}, -1, {.dtype = DType::i64}));
  EXPECT_EQ(error_of<ValueError>([&] { load_training_state(path, run.model, run.optimizer, {}, &own); }),
            "[ema] the number of updates must be from 0 to 2^53, but is -1");
  EXPECT_TRUE(bit_equal(run.model.weight(), before));
  EXPECT_TRUE(bit_equal(own.tensors()[0].second, before));
}

/// Changes a number in the file's metadata.
void put_count(const std::string& path, const std::string& name, std::int64_t count) {
  SafetensorsFile file = load_safetensors(path);
  file.metadata.at("poolgrad." + name) = std::to_string(count);
  save_safetensors(path, file);
}

constexpr std::int64_t bound = std::int64_t{1} << 53;

TEST(TrainingState, RefusesCountsAboveTheirBoundWithoutChanges) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun saved(1), run(2);
  saved.step();
  EMA average(saved.model), own(run.model);
  average.update();
  const Tensor before = run.model.weight().copy();
  const auto save = [&](std::int64_t updates) {
    save_training_state(path, saved.model, saved.optimizer, {.step = 1, .averages = &average});
    SafetensorsFile file = load_safetensors(path);
    for (auto& [name, tensor] : file.tensors)
      if (name == "ema.updates") tensor = from_data<std::int64_t>({updates}, {});
    save_safetensors(path, file);
  };
  const auto load = [&] { load_training_state(path, run.model, run.optimizer, {}, &own); };
  for (const std::int64_t updates : {INT64_MAX, INT64_MAX - 1, bound + 1, std::int64_t{-1}, INT64_MIN}) {
    save(updates);
    EXPECT_EQ(error_of<ValueError>(load),
              "[ema] the number of updates must be from 0 to 2^53, but is " + std::to_string(updates));
  }
  for (const char* name : {"step", "data_position", "optimizer_steps", "parameter_steps"})
    for (const std::int64_t count : {INT64_MAX, bound + 1}) {
      save(1);
      put_count(path, name, count);
      EXPECT_THAT(error_of<FileError>(load),
                  HasSubstr(std::string(name) + " is not a count up to 2^53: " + std::to_string(count)));
    }
  EXPECT_TRUE(bit_equal(run.model.weight(), before));
  EXPECT_TRUE(bit_equal(own.tensors()[0].second, before));
  EXPECT_EQ(own.updates(), 0);
  EXPECT_EQ(run.optimizer.steps(), 0);
}

TEST(TrainingState, CountsSaturateAndCanBeReadAgain) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun run(1);
  run.step();
  run.save(path);
  put_count(path, "optimizer_steps", bound);
  put_count(path, "parameter_steps", bound);
  SafetensorsFile file = load_safetensors(path);
  file.metadata["poolgrad.parameter_steps"] += "," + std::to_string(bound);
  save_safetensors(path, file);
  load_training_state(path, run.model, run.optimizer);
  run.step();
  EXPECT_EQ(run.optimizer.steps(), bound);
  EXPECT_THAT(run.optimizer.parameter_steps(), ElementsAre(bound, bound));
  EMA average(run.model);
  NamedTensors state = average.state();
  state.back().second = from_data<std::int64_t>({bound}, {});
  average.load(state);
  average.update();
  EXPECT_EQ(average.updates(), bound);
  average.load(average.state());
  LossScaler scaler;
  scaler.load({.scale = 8, .good_steps = bound, .skipped = bound});
  scaler.settle(1.0 / 0.0);
  EXPECT_EQ(scaler.state().skipped, bound);
  EXPECT_THROW(scaler.load({.scale = 8, .good_steps = 0, .skipped = bound + 1}), ValueError);
  run.save(path);
  load_training_state(path, run.model, run.optimizer);
}

TEST(TrainingState, ChecksBoolsBeforeAnyChange) {
  struct Masked : Module {
    Masked() {
      weight = constant_parameter("weight", {2}, 1.0, {});
      mask = register_buffer("mask", zeros({2}, {.dtype = DType::boolean}));
    }
    Tensor weight, mask;
  } saved, run;
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  saved.weight.detach().fill(5);
  AdamW from(saved.named_parameters()), to_resume(run.named_parameters());
  save_training_state(path, saved, from, {});
  std::string bytes = testing_support::read_bytes(path);
  bytes.back() = 2;  // the mask is of the narrowest type, and last
  testing_support::write_bytes(path, bytes);
  EXPECT_THAT(error_of<FileError>([&] { load_training_state(path, run, to_resume); }), HasSubstr("a bool of value 2"));
  EXPECT_EQ(run.weight.to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST(TrainingState, ChangesNothingWhenTheCallerRefuses) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  SmallRun saved(1), run(2);
  saved.step();
  saved.save(path);
  const Tensor before = run.model.weight().copy();
  const auto refuse = [](const TrainingState& state) { throw ValueError("step " + std::to_string(state.step)); };
  EXPECT_EQ(error_of<ValueError>([&] { load_training_state(path, run.model, run.optimizer, {}, nullptr, refuse); }),
            "step 1");
  EXPECT_TRUE(bit_equal(run.model.weight(), before));
  EXPECT_EQ(run.optimizer.steps(), 0);
}

TEST(TrainingState, HoldsTheTokenizer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  const SmallRun run(1);
  const auto save = [&](std::shared_ptr<const Tokenizer> tokenizer) {
    save_training_state(path, run.model, run.optimizer, {.tokenizer = std::move(tokenizer)});
  };
  const Tokenizer learned({{97, 98}, {256, 99}});
  save(std::make_shared<const Tokenizer>(learned));
  EXPECT_EQ(load_tokenizer(path), learned);
  SmallRun other(2);
  load_training_state(path, other.model, other.optimizer);
  save(nullptr);
  EXPECT_EQ(load_tokenizer(path), Tokenizer()) << "of bytes, as in files that know of no other";
  EXPECT_FALSE(load_safetensors(path).contains("tokenizer.merges"));
}

TEST(TrainingState, RefusesInvalidMerges) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  const SmallRun run(1);
  run.save(path);
  const SafetensorsFile whole = load_safetensors(path);
  const auto refusal = [&](const Tensor& merges) {
    SafetensorsFile file = whole;
    file.tensors.emplace_back("tokenizer.merges", merges);
    save_safetensors(path, file);
    return error_of<FileError>([&] { load_tokenizer(path); });
  };
  const std::string begin = "[load] " + path + ": tokenizer.merges: ";
  EXPECT_EQ(refusal(from_data<std::int32_t>({97, 98, 258, 1}, {2, 2})),
            begin + "[tokenizer] token 257 joins 258 and 1, which are not both earlier tokens");
  EXPECT_THAT(refusal(from_data<std::int32_t>({97, 98, 1}, {1, 3})),
              HasSubstr(begin + "must be pairs of tokens, but is (1, 3)"));
  EXPECT_THAT(refusal(from_data<std::int64_t>({97, 98}, {1, 2})), HasSubstr("must be pairs of tokens"));
  EXPECT_THAT(refusal(zeros({70000, 2}, {.dtype = DType::i32})), HasSubstr("must be pairs of tokens"));
}

}  // namespace
}  // namespace poolgrad::nn
