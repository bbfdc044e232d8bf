#include "nn/training/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "allocator/base/count.h"
#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/base/salted_map.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/input_file.h"
#include "tensor/safetensors.h"

namespace poolgrad::nn {

namespace {

constexpr const char* format_key = "poolgrad.format";
constexpr const char* format_value = "training-state-1";
constexpr const char* prefix = "poolgrad.";
constexpr const char* parameter_steps_key = "parameter_steps";
constexpr const char* loss_scale_key = "loss_scale";
constexpr const char* merges_key = "tokenizer.merges";
constexpr const char* averages_key = "ema.";

[[noreturn]] void refuse_file(const std::string& path, const std::string& reason) { fail_file("load", path, reason); }

/// Signed numbers are counts, which have an upper bound.
template <class Number>
Number parsed(const std::string& path, const std::string& name, std::string_view text) {
  const auto value = number_in<Number>(text);
  const bool too_large = std::is_same_v<Number, std::int64_t> && value && *value > static_cast<Number>(largest_count);
  if (!value || !(*value >= Number{0}) || too_large)
    refuse_file(path, name + " is not a count" + (too_large ? " up to 2^53: " : ": ") + printable(text));
  return *value;
}

template <class Number>
Number counter(const std::string& path, const SafetensorsFile& file, const std::string& name) {
  const auto entry = file.metadata.find(prefix + name);
  if (entry == file.metadata.end()) refuse_file(path, "no " + name + " in the metadata");
  return parsed<Number>(path, name, entry->second);
}

/// Returns counts that commas separate; none if the file has no such entry.
std::vector<std::int64_t> counters(const std::string& path, const SafetensorsFile& file, const std::string& name) {
  std::vector<std::int64_t> values;
  const auto entry = file.metadata.find(prefix + name);
  if (entry == file.metadata.end() || entry->second.empty()) return values;
  for (const std::string& part : split(entry->second, ',')) values.push_back(parsed<std::int64_t>(path, name, part));
  return values;
}

/// Reads straight into the tensors, so that none is in memory twice.
void read_model(const SafetensorsReader& reader, const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) reader.read("model." + name, tensor);
}

/// Reads tensors of a model, or their averages, if any. Averages of half types are f32. Throws ValueError, changing
/// nothing, if an average does not fit.
void read_weights(const SafetensorsReader& reader, const NamedTensors& tensors) {
  const NoGradGuard no_grad;
  NamedTensors averaged;
  for (const auto& [name, tensor] : tensors) {
    const std::string key = averages_key + name;
    if (!reader.outline().contains(key)) continue;
    const Tensor& average = reader.outline().at(key);
    if (average.shape() != tensor.shape() || average.dtype() != compute_dtype(tensor.dtype()))
      throw ValueError(fmt::format("[load] the average does not fit the module: {} is {} where the module has {}", key,
                                   describe(average), describe(tensor)));
    averaged.emplace_back(key, tensor);
  }
  read_model(reader, tensors);
  for (const auto& [key, parameter] : averaged) {  // last, because the file need not have an average of each parameter
    const Tensor& outline = reader.outline().at(key);
    Tensor average =
        outline.dtype() == parameter.dtype() ? parameter : Tensor::empty(outline.shape(), outline.options());
    reader.read(key, average);
    if (!average.is_same(parameter)) Tensor(parameter).copy_from(average);
  }
}

struct Comparison {
  NamedTensors fitting;  // of the model, with the name, shape and dtype of one there
  std::vector<StartingWeights::Left> left;
};

Comparison compared(const NamedTensors& there, const Module& model) {
  const auto shown = [](const Tensor& x) { return fmt::format("{} {}", to_string(x.shape()), to_string(x.dtype())); };
  SaltedTextMap<Tensor> others;
  for (const auto& [name, tensor] : there) others.emplace(name, tensor);
  Comparison result;
  for (const auto& [name, tensor] : model.named_tensors()) {
    const auto found = others.find(name);
    const std::string here = shown(tensor), in_file = found == others.end() ? "" : shown(found->second);
    if (here == in_file)
      result.fitting.emplace_back(name, tensor);
    else
      result.left.push_back({name, here, in_file});
    if (found != others.end()) others.erase(found);
  }
  for (const auto& [name, tensor] : there)
    if (others.contains(name)) result.left.push_back({name, "", shown(tensor)});
  return result;
}

void check_format(const std::string& path, const SafetensorsFile& file) {
  const auto format = file.metadata.find(format_key);
  if (format != file.metadata.end() && format->second != format_value)
    refuse_file(path, "a training state of another version, " + printable(format->second));
  if (format == file.metadata.end()) refuse_file(path, "not a training state of poolgrad");
}

/// Other tensors of the file may have dtypes that poolgrad does not know.
void check_trained_model(const std::string& path, const SafetensorsFile& file) {
  check_format(path, file);
  for (const char* read : {"model.", averages_key}) file.check_complete(read);
}

std::map<std::string, std::string> callers_metadata(const SafetensorsFile& file) {
  std::map<std::string, std::string> result;
  for (const auto& [key, value] : file.metadata)
    if (!key.starts_with(prefix)) result.emplace(key, value);
  return result;
}

/// Returns the tensors whose names begin with `start`, without that prefix.
NamedTensors with_prefix(const SafetensorsFile& file, const std::string& start) {
  NamedTensors result;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with(start)) result.emplace_back(name.substr(start.size()), tensor);
  return result;
}

/// Returns the tensors with the names of `state`, in its order. Returns `tensors` unchanged if a name is missing, or if
/// there are others and `may_be_others` is false.
NamedTensors in_order_of(const NamedTensors& state, const NamedTensors& tensors, bool may_be_others) {
  std::map<std::string, Tensor> by_name(tensors.begin(), tensors.end());
  NamedTensors result;
  for (const auto& [name, tensor] : state)
    if (const auto found = by_name.find(name); found != by_name.end()) result.push_back(*found);
  const bool complete = result.size() == state.size() && (may_be_others || state.size() == tensors.size());
  return complete ? result : tensors;
}

std::vector<std::int64_t> of_these(const std::string& path, const std::vector<std::int64_t>& all,
                                   const std::vector<std::size_t>& own) {
  std::vector<std::int64_t> result;
  for (const std::size_t i : own) {
    if (i >= all.size()) refuse_file(path, "steps of " + std::to_string(all.size()) + " parameters");
    result.push_back(all[i]);
  }
  return result;
}

/// Throws the errors of EMA::load(). Reads only the number of updates.
void check_averages(const SafetensorsReader& reader, const EMA& averages) {
  averages.check(with_prefix(reader.outline(), averages_key));
  const std::string key = std::string(averages_key) + "updates";
  const Tensor updates = zeros({}, {.dtype = DType::i64});
  reader.read(key, updates);
  EMA::updates_in(updates);
}

}  // namespace

void save_training_state(const std::string& path, const Module& model, const OptimizerState& optimizer,
                         const TrainingState& state, CallSite) {
  SafetensorsFile file;
  file.metadata = state.metadata;
  file.metadata[format_key] = format_value;
  const auto count = [&](const std::string& name, auto value) { file.metadata[prefix + name] = std::to_string(value); };
  count("step", state.step);
  count("data_position", state.data_position);
  count("optimizer_steps", optimizer.steps);
  std::string& own_steps = file.metadata[std::string(prefix) + parameter_steps_key];
  for (const std::int64_t steps : optimizer.parameter_steps)
    own_steps += (own_steps.empty() ? "" : ",") + std::to_string(steps);
  count("generator.seed", state.generator.seed);
  count("generator.use", state.generator.use);
  count("generator.offset", state.generator.offset);
  if (state.loss_scale) {
    file.metadata[std::string(prefix) + loss_scale_key] = fmt::format("{}", state.loss_scale->scale);  // all digits
    count("loss_scale.good_steps", state.loss_scale->good_steps);
    count("loss_scale.skipped", state.loss_scale->skipped);
  }
  for (const auto& [name, tensor] : model.named_tensors()) file.tensors.emplace_back("model." + name, tensor);
  NamedTensors by_name = optimizer.tensors;  // ranks with divided states give them in another order
  std::ranges::sort(by_name, {}, &NamedTensors::value_type::first);
  for (const auto& [name, tensor] : by_name) file.tensors.emplace_back("optimizer." + name, tensor);
  if (state.averages != nullptr)
    for (const auto& [name, tensor] : state.averages->state()) file.tensors.emplace_back(averages_key + name, tensor);
  if (state.tokenizer && !state.tokenizer->merges().empty()) {
    std::vector<std::int32_t> merges;
    for (const auto& [left, right] : state.tokenizer->merges()) merges.insert(merges.end(), {left, right});
    file.tensors.emplace_back(merges_key, from_data(merges, {std::ssize(merges) / 2, 2}));
  }
  save_safetensors(path, file);
}

TrainingState load_training_state(const std::string& path, Module& model, Optimizer& optimizer,
                                  const std::optional<std::vector<std::size_t>>& own, EMA* averages,
                                  const std::function<void(const TrainingState&)>& accept, CallSite) {
  const SafetensorsReader reader(path);
  const SafetensorsFile& file = reader.outline();
  check_format(path, file);
  file.check_complete();
  TrainingState state;
  state.step = counter<std::int64_t>(path, file, "step");
  state.data_position = counter<std::int64_t>(path, file, "data_position");
  state.generator = {counter<std::uint64_t>(path, file, "generator.seed"),
                     counter<std::uint64_t>(path, file, "generator.use"),
                     counter<std::uint64_t>(path, file, "generator.offset")};
  if (file.metadata.contains(std::string(prefix) + loss_scale_key))
    state.loss_scale = {counter<double>(path, file, loss_scale_key),
                        counter<std::int64_t>(path, file, "loss_scale.good_steps"),
                        counter<std::int64_t>(path, file, "loss_scale.skipped")};
  state.metadata = callers_metadata(file);
  const std::int64_t optimizer_steps = counter<std::int64_t>(path, file, "optimizer_steps");
  std::vector<std::int64_t> parameter_steps = counters(path, file, parameter_steps_key);
  if (own && !parameter_steps.empty()) parameter_steps = of_these(path, parameter_steps, *own);

  // Compares everything before it changes anything.
  const NamedTensors optimizer_state = with_prefix(file, "optimizer.");
  optimizer.check(in_order_of(optimizer.state(), optimizer_state, own.has_value()), optimizer_steps, parameter_steps);
  model.check(with_prefix(file, "model."));
  if (averages != nullptr) check_averages(reader, *averages);
  if (accept) accept(state);
  read_model(reader, model.named_tensors());
  if (averages != nullptr) {
    const NamedTensors state_of_averages = averages->state();
    for (const auto& [name, tensor] : state_of_averages) reader.read(averages_key + name, tensor);
    averages->load(state_of_averages);
  }
  for (const auto& [name, tensor] : optimizer.state()) reader.read("optimizer." + name, tensor);
  optimizer.load(optimizer.state(), optimizer_steps, parameter_steps);
  return state;
}

std::map<std::string, std::string> load_trained_model(const std::string& path, Module& model, CallSite) {
  if (is_pretrained_folder(path)) {
    import_weights(path, read_pretrained_config(path).rules, model, true);
    return {};
  }
  const SafetensorsReader reader(path);
  check_trained_model(path, reader.outline());
  model.check(with_prefix(reader.outline(), "model."));
  read_weights(reader, model.named_tensors());
  return callers_metadata(reader.outline());
}

StartingWeights load_starting_weights(const std::string& path, Module& model, CallSite) {
  if (is_pretrained_folder(path)) return import_weights(path, llama_rules, model);
  const SafetensorsReader reader(path);
  check_trained_model(path, reader.outline());
  const auto [fitting, left] = compared(with_prefix(reader.outline(), "model."), model);
  if (fitting.empty()) refuse_file(path, "no tensor fits the model");
  read_weights(reader, fitting);
  return {std::ssize(fitting), left};
}

void check_weights(const std::string& path, const LanguageModelConfig& config,
                   const std::function<std::unique_ptr<Module>(const ParameterOptions&)>& make) {
  constexpr std::int64_t fewest_of_a_layer = 6;  // tensors: two norms, two of a mixer, two of a feed-forward layer
  constexpr int outline_device = 98;             // plans use those from 99 on
  const auto refuse = [&](const std::string& reason) {
    refuse_file(path, fmt::format("its tensors do not match its model of {} and width {}: {}",
                                  plural(config.layers, "layer"), config.width, reason));
  };
  Generator generator(1);
  const auto outline = [&](std::int64_t tensors) {
    if (config.layers > tensors / fewest_of_a_layer) refuse(plural(tensors, "tensor") + " are too few");
    // Once: several threads may have outlines there.
    [[maybe_unused]] static const bool once =
        (configure_simulated_device(outline_device, std::size_t{768} << 30), true);
    std::unique_ptr<Module> model;
    try {
      model = make({.device = {DeviceType::sim, outline_device}, .generator = &generator});
    } catch (const OutOfMemoryError&) {
      refuse("such a model takes more than 768 GiB");
    }
    return model;
  };
  if (is_pretrained_folder(path)) return check_import(path, outline);
  const NamedTensors there = with_prefix(SafetensorsReader(path).outline(), "model.");
  const std::vector<StartingWeights::Left> left = compared(there, *outline(std::ssize(there))).left;
  if (left.empty()) return;
  const auto& [name, here, in_file] = left.front();
  refuse(in_file.empty() ? name + " is missing"
         : here.empty()  ? printable(name) + " is not part of it"
                         : fmt::format("{} is {} where {} is wanted", name, in_file, here));
}

Tokenizer load_tokenizer(const std::string& path, CallSite) {
  if (is_pretrained_folder(path)) return Tokenizer();
  const SafetensorsReader reader(path);
  check_format(path, reader.outline());
  if (!reader.outline().contains(merges_key)) return Tokenizer();
  const Tensor& outline = reader.outline().at(merges_key);
  const auto refusal = [&](const std::string& reason) {
    return FileError("[load] " + printable_path(path) + ": " + merges_key + ": " + reason);
  };
  if (outline.dtype() != DType::i32 || outline.dim() != 2 || outline.size(1) != 2 ||
      outline.size(0) > Tokenizer::most_tokens)
    throw refusal("must be pairs of tokens, but is " + describe(outline));
  Tensor pairs = Tensor::empty(outline.shape(), outline.options());
  reader.read(merges_key, pairs);
  const std::vector<std::int32_t> numbers = pairs.to_vector<std::int32_t>();
  std::vector<Tokenizer::Merge> merges;
  for (std::size_t i = 0; i < numbers.size(); i += 2) merges.emplace_back(numbers[i], numbers[i + 1]);
  try {
    return Tokenizer(std::move(merges));
  } catch (const ValueError& error) {
    throw refusal(error.what());
  }
}

std::map<std::string, std::string> read_training_metadata(const std::string& path, CallSite) {
  const SafetensorsReader reader(path);
  check_format(path, reader.outline());
  return callers_metadata(reader.outline());
}

}  // namespace poolgrad::nn
