// The configuration of examples/train as text: in presets, command lines and checkpoints. Models of checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/support/train_settings.h"

namespace poolgrad::examples {

namespace {

template <class T>
std::string to_text(const T& value) {
  return fmt::format("{}", value);
}

std::string to_text(const LayerList& layers) { return layers.text(); }

std::string to_text(const std::vector<std::int64_t>& values) { return fmt::format("{}", fmt::join(values, ",")); }

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::count(names, name) > 0;
}

/// Settings of training, in which a run may differ from the one whose weights it starts from.
bool is_of_training(std::string_view name) {
  return is_one_of(name, {"batch", "accumulate", "chunk", "tile", "steps", "lr", "optimizer", "schedule", "ema",
                          "dropout", "seed", "autocast", "loss-scale", "context-warmup"});
}

/// Duration and learning rate may change between runs of a checkpoint. A run from its weights keeps width, heads and
/// vocabulary.
bool may_change(std::string_view name, bool resumes) {
  return resumes ? is_one_of(name, {"steps", "lr", "schedule"}) : !is_one_of(name, {"tokenizer", "width", "heads"});
}

FileError malformed(const std::string& name, const std::string& text) {
  return FileError("[train] the checkpoint's " + name + " is malformed: " + printable(text));
}

/// For checkpoints with random attention; older ones have no key, and seed 0.
constexpr const char* attention_seed_key = "attention-seed";

}  // namespace

std::map<std::string, std::string> TrainOptions::configuration() const {
  std::map<std::string, std::string> result;
  for_each_setting(*this, [&](const char* name, const auto& value, const auto&) { result[name] = to_text(value); });
  result["lr"] = to_text(learning_rate());
  if (std::ranges::count(kinds_of(layer_runs()), "random"))
    result[attention_seed_key] = to_text(attention_in_force().seed);
  return result;
}

std::vector<std::string> TrainOptions::arguments() const {
  std::vector<std::string> words;
  const std::vector<std::string> kinds = kinds_of(layer_runs());
  for (const auto& [name, value] : configuration())
    if (!value.empty() && name != attention_seed_key && is_of_attention(name, kinds) &&
        (layers.is_number() || name != "attention"))
      words.push_back(fmt::format("--{}={}", name, value));
  return words;
}

void TrainOptions::adopt(const std::map<std::string, std::string>& configuration) {
  if (!configuration.contains("context"))
    throw FileError(
        "[train] the checkpoint has no model configuration, unlike those of ./run train: load it in the program that "
        "saved it");
  for (const char* const name : {"layers", "width", "heads", "attention", "batch", "steps", "lr", "seed", "dtype"})
    if (!configuration.contains(name)) throw FileError(std::string("[train] the checkpoint has no ") + name);
  // Older checkpoints lack other settings, which had these values then.
  auto of_checkpoint = configuration;
  of_checkpoint.emplace("optimizer", "adamw");
  of_checkpoint.emplace("loss-scale", "none");
  of_checkpoint.merge(TrainOptions().configuration());
  const auto set = setting_parser(*this);
  for_each_setting(*this, [&](const char* name, auto& value, const auto&) {
    if (!init.empty() && is_of_training(name)) return;
    const std::string& there = of_checkpoint.at(name);
    // The heads are already taken over: 0 stands for them.
    const auto shown = [&](const std::string& told) {
      return std::string_view(name) == "kv-heads" && told == "0" ? to_text(heads) : told;
    };
    if (given.count(name) && !(std::string_view(name) == "dtype" && to_text(value) == "auto")) {
      if (may_change(name, init.empty())) return;
      if (shown(to_text(value)) != shown(there))
        throw ValueError(fmt::format("[train] the checkpoint has another configuration: --{} is {} there, {} here",
                                     name, printable(shown(there)), printable(shown(to_text(value)))));
    }
    if constexpr (requires { value.clear(); }) {
      value.clear();
      if (there.empty()) return;
    }
    const bool is_flag = std::is_same_v<std::remove_reference_t<decltype(value)>, bool>;
    if (there.empty() || (is_flag && !is_one_of(there, {"true", "false"}))) throw malformed(name, there);
    try {
      set(name, there);
      if (std::string_view(name) == "layers") layers.count();
    } catch (const ValueError&) {
      throw malformed(name, there);
    }
  });
  attention_seed = number_in<std::uint64_t>(of_checkpoint.emplace(attention_seed_key, "0").first->second);
  if (!attention_seed) throw malformed(attention_seed_key, of_checkpoint.at(attention_seed_key));
}

void TrainOptions::check_tensors(const std::string& path) const {
  TrainOptions alone = *this;  // the ranks have one model
  alone.ranks = nullptr;
  nn::check_weights(path, model(), [&](const nn::ParameterOptions& parameters) {
    return alone.make_model(parameters.device, *parameters.generator);
  });
}

namespace {

TrainOptions options_of_folder(const std::string& path) {
  const auto [model, rope, rules] = nn::read_pretrained_config(path);
  constexpr std::int64_t bytes = 256;
  if (model.vocabulary < bytes || model.vocabulary > nn::Tokenizer::most_tokens)
    throw FileError(fmt::format("[load] {}: programs take a vocabulary of {} to {} tokens, but it has {}",
                                printable_path(path), bytes, nn::Tokenizer::most_tokens, model.vocabulary));
  if (model.layers > LayerList::most)
    throw FileError(fmt::format("[load] {}: programs take up to {} layers, but it has {}", printable_path(path),
                                LayerList::most, model.layers));
  std::string positions = fmt::format("rope:{}", rope.base);
  if (rope.scaling == RopeScaling::linear) positions += fmt::format(":linear:{}", rope.factor);
  std::erase(positions, '+');  // of an exponent: in a list it joins parts
  TrainOptions options;
  options.tokenizer = model.vocabulary == bytes ? "bytes" : fmt::format("bpe:{}", model.vocabulary);
  options.context = model.context;
  options.layers = LayerList(fmt::format("{}*causal+{}", model.layers, positions));
  options.attention.attention = "causal";  // of a number of layers
  options.width = model.width;
  options.heads = model.heads;
  options.kv_heads = model.kv_heads;
  options.feed_forward = "swiglu";
  options.hidden = model.hidden;
  options.norm_eps = model.norm_epsilon;
  options.tied_head = model.tied_head;
  return options;
}

}  // namespace

TrainOptions options_of(const std::string& path) {
  TrainOptions options;
  if (nn::is_pretrained_folder(path))
    options = options_of_folder(path);
  else
    options.adopt(nn::read_training_metadata(path));
  options.check_tensors(path);
  return options;
}

TrainedModel load_trained_model(const std::string& path, Device device) {
  TrainedModel trained;
  trained.options = options_of(path);
  trained.tokenizer = std::make_shared<const nn::Tokenizer>(
      trained.options.tokenizer == "bytes" ? nn::Tokenizer() : nn::load_tokenizer(path));
  trained.generator = std::make_unique<Generator>(trained.options.seed);
  trained.model = trained.options.make_model(device, *trained.generator);
  nn::load_trained_model(path, *trained.model);
  trained.model->eval();
  return trained;
}

}  // namespace poolgrad::examples
