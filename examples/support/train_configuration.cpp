// The configuration of examples/train as text: in presets, command lines and checkpoints. Models of checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "examples/support/train_settings.h"
#include "tensor/safetensors.h"

namespace poolgrad::examples {

namespace {

template <class T>
std::string to_text(const T& value) {
  return fmt::format("{}", value);
}

std::string to_text(const LayerList& layers) { return layers.text(); }

std::string to_text(const std::vector<std::int64_t>& values) { return fmt::format("{}", fmt::join(values, ",")); }

void from_text(const std::string&, const std::string& text, std::string& value) { value = text; }
void from_text(const std::string& name, const std::string& text, bool& value) {
  if (text != "true" && text != "false")
    throw FileError("[train] the checkpoint's " + name + " is malformed: " + printable(text));
  value = text == "true";
}
void from_text(const std::string& name, const std::string& text, LayerList& value) {
  value = LayerList(text);
  try {
    value.count();
  } catch (const ValueError&) {
    throw FileError("[train] the checkpoint's " + name + " is malformed: " + printable(text));
  }
}
template <class T>
void from_text(const std::string& name, const std::string& text, T& value) {
  const auto number = number_in<T>(text);
  if (!number) throw FileError("[train] the checkpoint's " + name + " is malformed: " + printable(text));
  value = *number;
}
void from_text(const std::string& name, const std::string& text, std::vector<std::int64_t>& values) {
  values.clear();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    from_text(name, text.substr(begin, end - begin), values.emplace_back());
    begin = end + 1;
  }
}

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

/// The value for old checkpoints without this setting; "" for settings that all checkpoints have.
std::string_view value_before(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> came_later[] = {{"chunk", "0"},
                                                                          {"tile", "0"},
                                                                          {"autocast", "none"},
                                                                          {"loss-scale", "none"},
                                                                          {"optimizer", "adamw"},
                                                                          {"schedule", "cosine"},
                                                                          {"tokenizer", "bytes"},
                                                                          {"accumulate", "1"},
                                                                          {"ema", "0"},
                                                                          {"state-chunk", "64"},
                                                                          {"conv", "4"},
                                                                          {"feed-forward", "gelu"},
                                                                          {"hidden", "0"},
                                                                          {"norm-eps", "0"},
                                                                          {"tied-head", "false"},
                                                                          {"logit-softcap", "0"},
                                                                          {"context-warmup", "none"}};
  for (const auto& [later, before] : came_later)
    if (name == later) return before;
  return "";
}

/// For checkpoints with random attention; older ones have no key, and seed 0.
constexpr const char* attention_seed_key = "attention-seed";

}  // namespace

void TrainOptions::use(const Preset& preset) {
  for_each_setting(*this, [&](const char* name, auto& value, const auto&) {
    for (const auto& [setting, its_value] : preset.settings)
      if (setting == name) from_text(name, its_value, value);
  });
}

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
  for_each_setting(*this, [&](const char* name, auto& value, const auto&) {
    if (!init.empty() && is_of_training(name)) return;
    const auto entry = configuration.find(name);
    const std::string there(entry == configuration.end() ? value_before(name) : entry->second);
    // The heads are already taken over: 0 stands for them.
    const auto shown = [&](const std::string& told) {
      return std::string_view(name) == "kv-heads" && told == "0" ? to_text(heads) : told;
    };
    if (entry == configuration.end() && there.empty())
      throw FileError(std::string("[train] the checkpoint has no ") + name);
    if (given.count(name) && !(std::string_view(name) == "dtype" && to_text(value) == "auto")) {
      if (may_change(name, init.empty())) return;
      if (shown(to_text(value)) != shown(there))
        throw ValueError(fmt::format("[train] the checkpoint has another configuration: --{} is {} there, {} here",
                                     name, printable(shown(there)), printable(shown(to_text(value)))));
    }
    from_text(name, there, value);
  });
  const auto blocks = configuration.find(attention_seed_key);
  from_text(attention_seed_key, blocks == configuration.end() ? "0" : blocks->second, attention_seed.emplace());
}

void TrainOptions::check_tensors(const std::string& path) const {
  constexpr std::string_view first = "block0.", of_model = "model.";
  constexpr int outline_device = 98;  // plans use those from 99 on
  const std::int64_t layer_count = layers.count();
  const auto refuse = [&](const std::string& reason) {
    throw FileError(fmt::format("[load] {}: its tensors do not match its model of {} and width {}: {}",
                                printable_path(path), plural(layer_count, "layer"), width, reason));
  };
  const SafetensorsReader reader(path);
  SaltedTextMap<const Tensor*> there;
  for (const auto& [name, tensor] : reader.outline().tensors)
    if (name.starts_with(of_model)) there.emplace(name.substr(of_model.size()), &tensor);
  configure_simulated_device(outline_device, std::size_t{768} << 30);
  Generator generator(seed);
  const auto outline_of = [&](const LayerRun& run) {  // of a model with one such layer
    nn::LanguageModelConfig one = model();
    one.layers = 1;
    try {
      return std::make_unique<nn::LanguageModel>(
          one, attention::attention_mixer(specs_of({run}, context, "train")),
          nn::ParameterOptions{.device = {DeviceType::sim, outline_device}, .generator = &generator});
    } catch (const OutOfMemoryError&) {
      refuse("one layer has more than 768 GiB");
      throw;
    }
  };
  const auto is_of_layer = [&](const auto& entry) { return entry.first.starts_with(first); };
  const std::vector<LayerRun> runs = layer_runs();
  std::vector<nn::NamedTensors> outlines;
  std::int64_t of_layers = 0, others = 0;
  for (const LayerRun& run : runs) {
    outlines.push_back(outline_of(run)->named_tensors());
    const std::int64_t of_layer = std::ranges::count_if(outlines.back(), is_of_layer);
    others = std::ssize(outlines.back()) - of_layer;
    if (run.count > (std::ssize(there) - others - of_layers) / of_layer)
      refuse(fmt::format("{} are too few: {} of {} each", plural(std::ssize(there), "tensor"),
                         plural(layer_count, "layer"), of_layer));
    of_layers += run.count * of_layer;
  }
  if (std::ssize(there) != of_layers + others)
    refuse(fmt::format("{} where all layers have {} and the rest {}", plural(std::ssize(there), "tensor"), of_layers,
                       others));
  const auto compare = [&](const std::string& name, const Tensor& tensor) {
    const auto found = there.find(name);
    if (found == there.end()) refuse(name + " is missing");
    if (found->second->shape() != tensor.shape() || found->second->dtype() != tensor.dtype())
      refuse(fmt::format("{} is {} {} where {} {} is wanted", name, to_string(found->second->shape()),
                         to_string(found->second->dtype()), to_string(tensor.shape()), to_string(tensor.dtype())));
  };
  std::int64_t before = 0;
  for (std::size_t i = 0; i < runs.size(); before += runs[i++].count)
    for (const auto& [name, tensor] : outlines[i])
      if (!name.starts_with(first))
        compare(name, tensor);
      else
        for (std::int64_t layer = before; layer < before + runs[i].count; ++layer)
          compare(fmt::format("block{}.{}", layer, name.substr(first.size())), tensor);
}

std::map<std::string, std::string> configuration_of(const std::string& path) {
  if (!nn::is_pretrained_folder(path)) return nn::read_training_metadata(path);
  const auto [model, rope, rules] = nn::read_pretrained_config(path);
  constexpr std::int64_t bytes = 256;
  if (model.vocabulary < bytes || model.vocabulary > nn::Tokenizer::most_tokens)
    throw FileError(fmt::format("[load] {}: programs take a vocabulary of {} to {} tokens, but it has {}",
                                printable_path(path), bytes, nn::Tokenizer::most_tokens, model.vocabulary));
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
  return options.configuration();
}

TrainedModel load_trained_model(const std::string& path, Device device) {
  TrainedModel trained;
  trained.options.adopt(configuration_of(path));
  if (!nn::is_pretrained_folder(path)) trained.options.check_tensors(path);
  trained.tokenizer = std::make_shared<const nn::Tokenizer>(
      trained.options.tokenizer == "bytes" ? nn::Tokenizer() : nn::load_tokenizer(path));
  trained.generator = std::make_unique<Generator>(trained.options.seed);
  trained.model = trained.options.make_model(device, *trained.generator);
  nn::load_trained_model(path, *trained.model);
  trained.model->eval();
  return trained;
}

}  // namespace poolgrad::examples
