// Models in Hugging Face's format: the same logits as their definition, and one sentence for each damaged folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "nn/training/checkpoint.h"
#include "tensor/compare.h"
#include "tests/attention/modules/llama.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using poolgrad::testing_support::read_bytes;
using poolgrad::testing_support::TemporaryFolder;
using poolgrad::testing_support::write_bytes;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::vector<std::int64_t> some_tokens{3, 18, 0, 7, 7, 1, 12, 5, 9, 3, 2};

/// Returns the largest difference of the model's logits from those of the definition, relative to the largest logit.
double error_of_logits(const Llama& llama, nn::LanguageModel& model) {
  const Tensor tokens = from_data(some_tokens, {1, std::ssize(some_tokens)});
  const std::vector<double> found = to(model.logits(tokens), DType::f64).to_vector<double>();
  const std::vector<double> wanted = llama.logits(some_tokens);
  EXPECT_EQ(found.size(), wanted.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference = std::max(difference, std::abs(found[i] - wanted[i]));
    largest = std::max(largest, std::abs(wanted[i]));
  }
  return difference / largest;
}

TEST(LoadLanguageModel, GivesTheLogitsOfTheDefinition) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (tied ? ", tied" : ""));
      const TemporaryFolder folder;
      Llama llama{.tied = tied, .dtype = dtype};
      llama.draw(test_seed());
      llama.write(folder.file("llama"));
      EXPECT_LT(error_of_logits(llama, *load_language_model(folder.file("llama"), DType::f64)), 1e-12);
      EXPECT_LT(error_of_logits(llama, *load_language_model(folder.file("llama"))), 1e-5);
    }
}

TEST(LoadLanguageModel, ReadsShardsAndScaledPositions) {
  const TemporaryFolder folder;
  Llama llama{.kv_heads = 1, .factor = 4, .dtype = DType::bf16};
  llama.draw(test_seed());
  llama.write(folder.file("llama"), 3);
  EXPECT_LT(error_of_logits(llama, *load_language_model(folder.file("llama"), DType::f64)), 1e-12);
}

TEST(LoadLanguageModel, ReadsThePositionsOfNewerFiles) {
  const TemporaryFolder folder;
  Llama llama{.layers = 1, .base = 1e6};
  llama.draw(test_seed());
  llama.write(folder.file("llama"));
  std::string config = llama.config();
  const std::size_t begin = config.find("\"rope_theta\"");
  config.replace(begin, config.size() - begin,
                 R"("head_dim": 6, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}})");
  write_bytes(folder.file("llama/config.json"), config);
  EXPECT_LT(error_of_logits(llama, *load_language_model(folder.file("llama"), DType::f64)), 1e-12);
}

TEST(LoadLanguageModel, IgnoresTheHeadOfATiedModel) {
  const TemporaryFolder folder;
  Llama llama{.layers = 1};
  llama.draw(test_seed());
  llama.tied = true;
  llama.write(folder.file("llama"));
  EXPECT_LT(error_of_logits(llama, *load_language_model(folder.file("llama"), DType::f64)), 1e-12);
}

TEST(LoadLanguageModel, TakesTheSameMemoryOnASimulatedDevice) {
  const TemporaryFolder folder;
  Llama llama{.dtype = DType::bf16};
  llama.draw(1);
  llama.write(folder.file("llama"));
  const Device sim{DeviceType::sim, 57};
  configure_simulated_device(sim.index, std::size_t{1} << 30, "cpu");
  const auto bytes_of = [&](Device device) {
    const std::size_t before = allocator_for(device).statistics().allocated_bytes.current;
    const auto model = load_language_model(folder.file("llama"), DType::f32, {.device = device});
    return allocator_for(device).statistics().allocated_bytes.current - before;
  };
  EXPECT_EQ(bytes_of(sim), bytes_of(cpu));
}

TEST(LoadLanguageModel, LeavesAnotherModelUnchanged) {
  const TemporaryFolder folder;
  Llama llama{};
  llama.draw(1);
  llama.write(folder.file("llama"));
  const nn::LanguageModelConfig fitting = nn::read_pretrained_config(folder.file("llama")).model;
  const auto refused = [&](const auto& change) {
    nn::LanguageModelConfig config = fitting;
    change(config);
    const auto model = make_language_model(config, Pattern::causal());
    const Tensor before = model->parameters()[0].copy();
    const std::string text = error_of<FileError>([&] { nn::load_trained_model(folder.file("llama"), *model); });
    EXPECT_TRUE(bit_equal(model->parameters()[0], before));
    return text;
  };
  EXPECT_THAT(refused([](auto& c) { c.layers = 3; }),
              EndsWith("block2.norm1.weight (24,) f32 (made of model.layers.2.input_layernorm.weight) is missing"));
  EXPECT_THAT(refused([](auto& c) { c.layers = 1; }), HasSubstr("is there, but not in the model"));
  EXPECT_THAT(refused([](auto& c) { c.tied_head = true; }),
              EndsWith("head.weight (19, 24) f32 (made of lm_head.weight) is there, but not in the model"));
  EXPECT_THAT(refused([](auto& c) { c.feed_forward = nn::FeedForwardKind::gelu; }),
              HasSubstr("feed_forward.gate.weight"));
}

/// A folder that a test damages.
class DamagedLlama : public ::testing::Test {
 protected:
  DamagedLlama() { llama_.draw(1); }

  std::string path() const { return folder_.file("llama"); }
  std::string refusal(int shards = 1) {
    llama_.write(path(), shards);
    return refusal_of_files();
  }
  std::string refusal_of_files() {
    CachingAllocator& pool = allocator_for(cpu);
    pool.reset_peaks();
    const std::size_t before = pool.statistics().allocated_bytes.current;
    const std::string text = error_of<FileError>([&] { load_language_model(path()); });
    EXPECT_LT(pool.statistics().allocated_bytes.peak - before, 64 << 10) << "outlines of tensors";
    return text;
  }
  /// The refusal of config.json with another value of a key.
  std::string with(const std::string& key, const std::string& value) {
    llama_.write(path());
    std::string config = llama_.config();
    const std::size_t begin = config.find("\"" + key + "\": ");
    if (begin == std::string::npos)
      config.insert(1, "\"" + key + "\": " + value + ",\n");
    else
      config.replace(begin, config.find_first_of(",}", begin) - begin, "\"" + key + "\": " + value);
    write_bytes(path() + "/config.json", config);
    return refusal_of_files();
  }

  TemporaryFolder folder_;
  Llama llama_{.vocabulary = 5000, .layers = 1};  // above the limit of refusal_of_files()
};

TEST_F(DamagedLlama, NamesBothShapesOfATensor) {
  llama_.weights["model.layers.0.self_attn.k_proj.weight"] = zeros({24, 24});
  EXPECT_EQ(refusal(),
            "[load] " + path() +
                ": block0.mixer.projection.weight (made of model.layers.0.self_attn.q_proj.weight, "
                "model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.v_proj.weight) is (60, 24) f32 "
                "there, but (48, 24) f32 in the model");
  llama_.weights["model.layers.0.self_attn.k_proj.weight"] = zeros({12, 24}, {.dtype = DType::i32});
  EXPECT_THAT(refusal(), HasSubstr("k_proj.weight' is (12, 24) i32, which cannot follow (24, 24) in "));
}

TEST_F(DamagedLlama, NamesTheMissingTensor) {
  llama_.weights.erase("lm_head.weight");
  EXPECT_EQ(refusal(), "[load] " + path() + ": head.weight (5000, 24) f32 (made of lm_head.weight) is missing");
}

TEST_F(DamagedLlama, RefusesSizesOtherThanTheFiles) {
  EXPECT_THAT(with("num_hidden_layers", "1099511627776"),
              EndsWith("model of 1099511627776 layers and width 24: 12 tensors are too few"));
  EXPECT_THAT(with("intermediate_size", "1099511627776"), EndsWith("such a model takes more than 768 GiB"));
  EXPECT_THAT(with("vocab_size", "1e300"), EndsWith("vocab_size must be a whole number from 1 to 2^40, but is 1e+300"));
  EXPECT_THAT(with("hidden_size", "18446744073709551615"),
              HasSubstr("hidden_size must be a whole number from 1 to 2^40"));
  EXPECT_THAT(with("num_attention_heads", "0"),
              EndsWith("num_attention_heads must be a whole number from 1 to 2^40, but is 0"));
  EXPECT_THAT(with("num_attention_heads", "5"),
              EndsWith("config.json: its sizes do not fit together: width 24 is not divisible by 5 heads"));
  EXPECT_THAT(with("num_key_value_heads", "3"), HasSubstr("4 heads are not a multiple of 3 kv-heads"));
  llama_ = {};
  llama_.draw(1);
  EXPECT_THAT(
      with("num_hidden_layers", "1"),
      HasSubstr(": block1.feed_forward.down.weight (24, 10) f32 (made of model.layers.1.mlp.down_proj.weight) is "
                "there, but not in the model"));
}

TEST_F(DamagedLlama, RefusesOtherModels) {
  EXPECT_THAT(with("model_type", "\"gpt2\""), EndsWith("model_type must be \"llama\", but is \"gpt2\""));
  EXPECT_THAT(with("hidden_act", "\"gelu\""), EndsWith("hidden_act must be \"silu\", but is \"gelu\""));
  EXPECT_THAT(with("attention_bias", "true"), EndsWith("attention_bias must be false, but is true"));
  const std::string nested = std::string(400000, '[') + std::string(400000, ']');
  for (const char* key : {"model_type", "vocab_size", "rope_theta", "tie_word_embeddings"})
    EXPECT_THAT(with(key, nested), EndsWith("but is an array")) << key;
  EXPECT_THAT(with("head_dim", "8"), EndsWith("head_dim must be 6, but is 8"));
  EXPECT_THAT(with("rms_norm_eps", "-1"), EndsWith("rms_norm_eps must be a positive number, but is -1"));
  EXPECT_THAT(with("rope_theta", "\"x\""), EndsWith("rope_theta must be a positive number, but is \"x\""));
  EXPECT_THAT(with("tie_word_embeddings", "1"), EndsWith("tie_word_embeddings must be true or false, but is 1"));
  EXPECT_THAT(with("rope_scaling", R"({"rope_type": "llama3"})"),
              EndsWith("the rope_type of rope_scaling must be default or linear, but is \"llama3\""));
}

TEST_F(DamagedLlama, RefusesTruncatedAndMissingFiles) {
  llama_.write(path());
  const std::string bytes = read_bytes(path() + "/model.safetensors");
  write_bytes(path() + "/model.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refusal_of_files(), HasSubstr("model.safetensors: tensor"));
  std::filesystem::remove(path() + "/model.safetensors");
  EXPECT_EQ(refusal_of_files(),
            "[load] " + path() + ": the folder has neither model.safetensors nor model.safetensors.index.json");
  for (const char* config : {"", "{", "[]", "{\"model_type\": 1e999}"}) {
    write_bytes(path() + "/config.json", config);
    EXPECT_THAT(refusal_of_files(), HasSubstr("config.json: ")) << config;
  }
  const std::size_t depth = 400000;
  write_bytes(path() + "/config.json", "{\"x\": " + std::string(depth, '[') + std::string(depth, ']') + "}");
  EXPECT_THAT(refusal_of_files(), EndsWith("model_type is missing"));
  write_bytes(path() + "/config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(refusal_of_files(), EndsWith("1048577 bytes are more than 1048576"));
  std::filesystem::remove(path() + "/config.json");
  EXPECT_THAT(refusal_of_files(), HasSubstr("config.json: "));
}

TEST_F(DamagedLlama, RefusesAnIndexThatDoesNotFitItsShards) {
  llama_.write(path(), 2);
  const std::string index = path() + "/model.safetensors.index.json", text = read_bytes(index);
  const auto refused = [&](const std::string& shard) {
    std::string changed = text;
    const std::string name = "model-2.safetensors";
    for (std::size_t at = changed.find(name); at != std::string::npos; at = changed.find(name, at + shard.size()))
      changed.replace(at, name.size(), shard);
    write_bytes(index, changed);
    return refusal_of_files();
  };
  EXPECT_THAT(refused("model-3.safetensors"), HasSubstr("model-3.safetensors: "));
  EXPECT_THAT(refused("model-1.safetensors"), EndsWith("is not in 'model-1.safetensors'"));
  EXPECT_THAT(refused("model.safetensors.index.json"), HasSubstr("not a safetensors file")) << "the index itself";
  for (const char* elsewhere : {"../llama/model-2.safetensors", "..", "", "/etc/passwd", "model-2.safetensors\\u0000"})
    EXPECT_THAT(refused(elsewhere), EndsWith("is not a file of the same folder")) << elsewhere;
  std::string many = R"({"weight_map": {"x": "0")";
  for (int i = 1; i < 257; ++i) many += ", \"x" + std::to_string(i) + "\": \"" + std::to_string(i) + "\"";
  write_bytes(index, many + "}}");
  EXPECT_THAT(refusal_of_files(), EndsWith("257 shards are more than 256"));
  std::filesystem::copy_file(path() + "/model-2.safetensors", path() + "/model-4.safetensors");
  write_bytes(index, text.substr(0, text.size() - 2) + R"(, "x": "model-4.safetensors"}})");
  EXPECT_THAT(refusal_of_files(), EndsWith("is in another shard, too"));
  for (const char* broken : {"{}", R"({"weight_map": 3})", R"({"weight_map": {}})", R"({"weight_map": {"x": 3}})"}) {
    write_bytes(index, broken);
    EXPECT_THAT(refusal_of_files(), AllOf(HasSubstr("[load] " + index), HasSubstr(": "))) << broken;
  }
}

}  // namespace
}  // namespace poolgrad::attention
