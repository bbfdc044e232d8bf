#include "nn/training/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"
#include "tensor/input_file.h"

namespace poolgrad::nn {

const std::string_view llama_rules = R"(
embedding.weight = model.embed_tokens.weight
block*.norm1.weight = model.layers.*.input_layernorm.weight
# Heads of queries, of keys and of values. Both rotate the pairs (d, d + D/2).
block*.mixer.projection.weight = model.layers.*.self_attn.q_proj.weight + model.layers.*.self_attn.k_proj.weight + model.layers.*.self_attn.v_proj.weight
block*.mixer.output.weight = model.layers.*.self_attn.o_proj.weight
block*.norm2.weight = model.layers.*.post_attention_layernorm.weight
block*.feed_forward.up.weight = model.layers.*.mlp.up_proj.weight
block*.feed_forward.gate.weight = model.layers.*.mlp.gate_proj.weight
block*.feed_forward.down.weight = model.layers.*.mlp.down_proj.weight
norm.weight = model.norm.weight
head.weight = lm_head.weight
)";

namespace {

using FolderJson = nlohmann::json;

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr std::uint64_t longest_config = 1 << 20, longest_index = 16 << 20;  // bytes
constexpr std::size_t most_shards = 256;                                     // files that are open at once
constexpr std::int64_t largest_size = std::int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& path, const std::string& reason) { fail_file("load", path, reason); }

std::string in_folder(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

/// Returns the JSON object in a file.
FolderJson json_in(const std::string& path, std::uint64_t most) {
  const InputFile file("load", path);
  if (file.size() > most) file.fail(fmt::format("{} bytes are more than {}", file.size(), most));
  FolderJson json = FolderJson::parse(file.read_text(0, file.size()), nullptr, false);
  if (!json.is_object()) file.fail("not a JSON object");
  return json;
}

std::string shape_and_dtype(const Tensor& x) { return to_string(x.shape()) + " " + std::string(to_string(x.dtype())); }

/// A tensor without bytes, as in SafetensorsReader::outline().
Tensor outline_of(const Shape& shape, DType dtype) {
  return Tensor::empty({1}, {dtype, cpu}).alias({shape, Strides::filled(shape.rank(), 0), 0});
}

/// The safetensors files of one model.
class WeightFiles {
 public:
  struct Source {
    const SafetensorsReader* file;
    Tensor outline;
  };

  explicit WeightFiles(const std::string& path) : path_(path) {
    if (!is_pretrained_folder(path))
      open(path);
    else if (const std::string whole = in_folder(path, weights_name); is_there(whole))
      open(whole);
    else if (const std::string index = in_folder(path, index_name); is_there(index))
      open_shards(index);
    else
      refuse(path, fmt::format("the folder has neither {} nor {}", weights_name, index_name));
  }

  const std::map<std::string, Source>& sources() const { return sources_; }
  /// Returns nullptr for a name that is missing. Throws FileError for a tensor of a dtype that poolgrad lacks.
  const Source* find(const std::string& name) const {
    const auto found = sources_.find(name);
    if (found == sources_.end())
      for (const auto& file : files_)
        if (file->outline().unsupported.contains(name)) file->outline().at(name);
    return found == sources_.end() ? nullptr : &found->second;
  }
  /// Names and dtypes of tensors that poolgrad cannot read.
  const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
  const std::string& path() const { return path_; }

 private:
  const SafetensorsReader& open(const std::string& path) {
    const SafetensorsReader& file = *files_.emplace_back(std::make_unique<SafetensorsReader>(path));
    for (const auto& [name, tensor] : file.outline().tensors)
      if (!sources_.emplace(name, Source{&file, tensor}).second)
        refuse(path, "tensor " + in_quotes(name) + " is in another shard, too");
    unsupported_.insert(file.outline().unsupported.begin(), file.outline().unsupported.end());
    return file;
  }

  /// Opens the files of an index. They lie in its folder.
  void open_shards(const std::string& path) {
    const FolderJson index = json_in(path, longest_index);
    const auto map = index.find("weight_map");
    if (map == index.end() || !map->is_object()) refuse(path, "no weight_map");
    std::map<std::string, const SafetensorsReader*> shards;
    for (const auto& [name, shard] : map->items()) {
      const std::string* const file = shard.get_ptr<const std::string*>();
      if (file == nullptr || file->empty() || file->find_first_of(std::string("/\0", 2)) != std::string::npos ||
          *file == "." || *file == "..")
        refuse(path, "the shard of tensor " + in_quotes(name) + " is not a file of the same folder");
      shards.emplace(*file, nullptr);
    }
    if (shards.size() > most_shards)
      refuse(path, fmt::format("{} shards are more than {}", shards.size(), most_shards));
    for (auto& [file, reader] : shards) reader = &open(in_folder(path_, file));
    if (shards.empty()) refuse(path, "an empty weight_map");
    for (const auto& [name, shard] : map->items()) {
      const std::string& file = shard.get_ref<const std::string&>();
      const auto source = sources_.find(name);
      if (source != sources_.end() ? source->second.file != shards[file]
                                   : !shards[file]->outline().unsupported.contains(name))
        refuse(path, fmt::format("tensor {} is not in {}", in_quotes(name), in_quotes(file)));
    }
  }

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, std::string> unsupported_;  // names and dtypes
  std::map<std::string, Source> sources_;           // ordered: names of a hostile file cannot collide
};

/// One name on the right side of a rule.
struct RulePart {
  std::string pattern;
  bool transposed = false;
  std::int64_t piece = 0, pieces = 1;
};

struct ImportRule {
  std::string target;
  std::vector<RulePart> parts;
};

const std::string& checked_name(const std::string& name, const auto& fail) {
  if (name.empty() || name.find_first_of(" \t=[]^") != std::string::npos)
    fail("a name is empty, or has one of the characters = [ ] ^ or a space");
  return name;
}

RulePart parse_part(std::string text, const auto& fail) {
  RulePart part;
  if (text.ends_with(']')) {
    const std::size_t open = text.rfind('['), slash = text.rfind('/');
    if (open == std::string::npos || slash == std::string::npos || slash < open) fail("a part is [I/N]");
    const auto piece = number_in<std::int64_t>(std::string_view(text).substr(open + 1, slash - open - 1));
    const auto pieces = number_in<std::int64_t>(std::string_view(text).substr(slash + 1, text.size() - slash - 2));
    if (!piece || !pieces || *piece < 0 || *piece >= *pieces) fail("a part is [I/N] with I from 0 to N - 1");
    part.piece = *piece;
    part.pieces = *pieces;
    text.resize(open);
  }
  if (text.ends_with("^T")) {
    part.transposed = true;
    text.resize(text.size() - 2);
  }
  part.pattern = checked_name(text, fail);
  return part;
}

std::vector<ImportRule> parse_rules(std::string_view text) {
  std::vector<ImportRule> rules;
  std::int64_t number = 0;
  for (const std::string& whole : split(text, '\n')) {
    ++number;
    const auto fail = [&](const std::string& reason) {
      throw ValueError(fmt::format("[import] rule in line {}, {}: {}", number, printable(whole), reason));
    };
    const std::string_view line = trimmed(std::string_view(whole).substr(0, whole.find('#')));
    if (line.empty()) continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) fail("it needs NAME = NAME");
    ImportRule& rule = rules.emplace_back();
    rule.target = checked_name(std::string(trimmed(line.substr(0, equals))), fail);
    for (const std::string& part : split(line.substr(equals + 1), '+'))
      rule.parts.push_back(parse_part(std::string(trimmed(part)), fail));
    for (const RulePart& part : rule.parts)
      if (std::ranges::count(part.pattern, '*') != std::ranges::count(rule.target, '*'))
        fail("each name needs the same number of *");
  }
  return rules;
}

/// Returns the numbers that the `*` of a pattern stand for in this name; none if it does not match.
std::optional<std::vector<std::string>> numbers_in(std::string_view pattern, std::string_view name) {
  std::vector<std::string> numbers;
  std::size_t at = 0;
  for (const char c : pattern) {
    if (c != '*') {
      if (at == name.size() || name[at++] != c) return std::nullopt;
      continue;
    }
    const std::size_t begin = at;
    while (at < name.size() && name[at] >= '0' && name[at] <= '9') ++at;
    if (at == begin) return std::nullopt;
    numbers.emplace_back(name.substr(begin, at - begin));
  }
  if (at != name.size()) return std::nullopt;
  return numbers;
}

std::string with_numbers(std::string_view pattern, const std::vector<std::string>& numbers) {
  std::string name;
  std::size_t next = 0;
  for (const char c : pattern) name += c == '*' ? numbers[next++] : std::string(1, c);
  return name;
}

/// Returns whether a tensor can take the values of another: copies cast floating dtypes.
bool castable(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

/// The tensors that rules make of files.
class ImportedTensors {
 public:
  ImportedTensors(const WeightFiles& files, std::string_view rules) : files_(files), rules_(parse_rules(rules)) {
    for (const auto& [name, source] : files.sources()) add_of(name);
    for (const auto& [name, dtype] : files.unsupported()) add_of(name);
  }

  /// A tensor without bytes; nullptr for a name that no rule makes.
  const Tensor* find(const std::string& name) const {
    const auto found = made_.find(name);
    return found == made_.end() ? nullptr : &found->second.outline;
  }
  /// Names of the tensors that rules make.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, made] : made_) names.push_back(name);
    return names;
  }
  /// Returns " (made of model.layers.0.mlp.up_proj.weight)", the sources of a tensor; "" for its own name or no rule.
  std::string sources_of(const std::string& name) const {
    std::string sources;
    for (const ImportRule& rule : rules_)
      if (const auto numbers = numbers_in(rule.target, name))
        for (const RulePart& part : rule.parts)
          sources += (sources.empty() ? "" : ", ") + with_numbers(part.pattern, *numbers);
    return sources.empty() || sources == name ? "" : fmt::format(" (made of {})", sources);
  }
  /// Returns the tensors of the files, with shape and dtype, that no tensor in `taken` needs.
  std::map<std::string, std::string> unused_beside(const std::set<std::string>& taken) const {
    std::map<std::string, std::string> unused = files_.unsupported();
    for (const auto& [name, source] : files_.sources()) unused.emplace(name, shape_and_dtype(source.outline));
    for (const std::string& name : taken)
      for (const Piece& piece : made_.at(name).pieces) unused.erase(piece.name);
    return unused;
  }

  /// Reads a tensor into one of its shape.
  void read(const std::string& name, const Tensor& into) const {
    const NoGradGuard no_grad;
    const std::vector<Piece>& pieces = made_.at(name).pieces;
    std::int64_t row = 0;
    for (const Piece& piece : pieces) {
      const std::int64_t begin = row;
      row += piece.end - piece.begin;
      Tensor rows = pieces.size() == 1 ? into : slice(into, 0, begin, row);
      const Tensor& outline = piece.source->outline;
      if (piece.is_whole() && outline.dtype() == into.dtype()) {
        piece.source->file->read(piece.name, rows);
        continue;
      }
      Tensor whole = Tensor::empty(outline.shape(), {outline.dtype(), cpu});
      piece.source->file->read(piece.name, whole);
      if (piece.transposed) whole = transpose(whole, 0, 1);
      rows.copy_from(whole.dim() > 0 ? slice(whole, 0, piece.begin, piece.end) : whole);
    }
  }

 private:
  /// Rows of a tensor of the files, perhaps transposed before.
  struct Piece {
    const WeightFiles::Source* source;
    std::string name;
    bool transposed;
    std::int64_t begin, end;  // of a tensor without dimensions: 0, 0

    bool is_whole() const {
      const Shape& shape = source->outline.shape();
      return !transposed && (shape.rank() == 0 || (begin == 0 && end == shape[0]));
    }
  };
  struct Made {
    const ImportRule* rule;  // only to compare
    Tensor outline;
    std::vector<Piece> pieces;
  };

  /// Adds the tensors that rules make of this one.
  void add_of(const std::string& name) {
    for (const ImportRule& rule : rules_)
      for (const RulePart& part : rule.parts)
        if (const auto numbers = numbers_in(part.pattern, name)) add(rule, *numbers);
  }
  /// Adds the tensor that the rule makes for these numbers, once.
  void add(const ImportRule& rule, const std::vector<std::string>& numbers) {
    const std::string target = with_numbers(rule.target, numbers);
    const auto [place, is_new] = made_.try_emplace(target, Made{&rule, {}, {}});
    if (!is_new && place->second.rule != &rule)
      throw ValueError(fmt::format("[import] two rules make {}", in_quotes(target)));
    if (!is_new) return;
    Shape whole;
    DType dtype = DType::f32;
    std::vector<Piece>& pieces = place->second.pieces;
    for (const RulePart& part : rule.parts) {
      const std::string name = with_numbers(part.pattern, numbers);
      const WeightFiles::Source* const source = files_.find(name);
      if (source == nullptr)
        refuse(files_.path(), fmt::format("{} is missing, a part of {}", in_quotes(name), in_quotes(target)));
      Shape shape = source->outline.shape();
      const auto fail = [&](const std::string& reason) {
        refuse(files_.path(), fmt::format("{} is {}, {}", in_quotes(name), shape_and_dtype(source->outline), reason));
      };
      if (part.transposed) {
        if (shape.rank() != 2) fail("but only two dimensions can be transposed");
        shape = {shape[1], shape[0]};
      }
      Piece& piece = pieces.emplace_back(Piece{source, name, part.transposed, 0, shape.rank() > 0 ? shape[0] : 0});
      if (part.pieces > 1) {
        if (shape.rank() == 0 || shape[0] % part.pieces != 0)
          fail(fmt::format("which does not divide into {} equal parts", part.pieces));
        shape[0] /= part.pieces;
        piece.begin = part.piece * shape[0];
        piece.end = piece.begin + shape[0];
      }
      if (pieces.size() == 1) {
        whole = shape;
        dtype = source->outline.dtype();
        continue;
      }
      bool fits = shape.rank() > 0 && shape.rank() == whole.rank() && castable(source->outline.dtype(), dtype);
      for (int i = 1; fits && i < shape.rank(); ++i) fits = shape[i] == whole[i];
      std::int64_t rows = 0;
      if (!fits || __builtin_add_overflow(whole[0], shape[0], &rows))
        fail(fmt::format("which cannot follow {} in {}", to_string(whole), in_quotes(target)));
      whole[0] = rows;
    }
    place->second.outline = outline_of(whole, dtype);
  }

  const WeightFiles& files_;
  std::vector<ImportRule> rules_;
  std::map<std::string, Made> made_;
};

/// Returns the names of the tensors of a model that are there, and the others in `left`. Throws FileError for a tensor
/// that does not fit, and if `complete` for one that either side lacks.
std::set<std::string> names_to_take(const std::string& path, const ImportedTensors& imported, const NamedTensors& own,
                                    bool complete, std::vector<StartingWeights::Left>& left) {
  std::set<std::string> taken;
  for (const auto& [name, tensor] : own) {
    const Tensor* const there = imported.find(name);
    if (there == nullptr) {
      if (complete)
        refuse(path, fmt::format("{} {}{} is missing", name, shape_and_dtype(tensor), imported.sources_of(name)));
      left.push_back({name, shape_and_dtype(tensor), ""});
      continue;
    }
    if (there->shape() != tensor.shape() || !castable(there->dtype(), tensor.dtype()))
      refuse(path, fmt::format("{}{} is {} there, but {} in the model", name, imported.sources_of(name),
                               shape_and_dtype(*there), shape_and_dtype(tensor)));
    taken.insert(name);
  }
  if (taken.empty()) refuse(path, "no tensor fits the model");
  if (complete)
    for (const std::string& name : imported.names())
      if (!taken.contains(name))
        refuse(path, fmt::format("{} {}{} is there, but not in the model", name, shape_and_dtype(*imported.find(name)),
                                 imported.sources_of(name)));
  for (const auto& [name, there] : imported.unused_beside(taken)) left.push_back({name, "", there});
  return taken;
}

}  // namespace

StartingWeights import_weights(const std::string& path, std::string_view rules, Module& model, bool complete,
                               CallSite) {
  const WeightFiles files(path);
  const ImportedTensors imported(files, rules);
  const NamedTensors own = model.named_tensors();
  StartingWeights result;
  const std::set<std::string> taken = names_to_take(path, imported, own, complete, result.left);
  for (const auto& [name, tensor] : own)
    if (taken.contains(name)) imported.read(name, tensor);
  result.taken = std::ssize(taken);
  return result;
}

void check_import(const std::string& folder, const std::function<std::unique_ptr<Module>(std::int64_t tensors)>& make) {
  const WeightFiles files(folder);
  const std::unique_ptr<Module> model = make(std::ssize(files.sources()));
  std::vector<StartingWeights::Left> left;
  names_to_take(folder, ImportedTensors(files, read_pretrained_config(folder).rules), model->named_tensors(), true,
                left);
}

bool is_pretrained_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

namespace {

/// Reads the keys of config.json. Every error names the key.
class ConfigReader {
 public:
  explicit ConfigReader(const std::string& folder)
      : path_(in_folder(folder, config_name)), json_(json_in(path_, longest_config)) {}

  [[noreturn]] void fail(const std::string& reason) const { refuse(path_, reason); }
  /// Returns nullptr for a key that is missing or null.
  const FolderJson* find(const char* key) const { return member(json_, key); }
  static const FolderJson* member(const FolderJson& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = {}) const {
    const FolderJson* const value = find(key);
    if (value == nullptr && !otherwise) fail(fmt::format("{} is missing", key));
    if (value == nullptr) return *otherwise;
    if (!value->is_number_integer() || *value < 1 || *value > largest_size)
      fail(fmt::format("{} must be a whole number from 1 to 2^40, but is {}", key, shown(*value)));
    return value->get<std::int64_t>();
  }
  double positive(const FolderJson& object, const char* key, double otherwise) const {
    const FolderJson* const value = member(object, key);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>()))
      fail(fmt::format("{} must be a positive number, but is {}", key, shown(*value)));
    return value->get<double>();
  }
  bool flag(const char* key) const {
    const FolderJson* const value = find(key);
    if (value != nullptr && !value->is_boolean())
      fail(fmt::format("{} must be true or false, but is {}", key, shown(*value)));
    return value != nullptr && value->get<bool>();
  }
  /// Throws FileError if the key has another value, which the model does not compute.
  void expect(const char* key, const FolderJson& only) const {
    const FolderJson* const value = find(key);
    if (value != nullptr && *value != only)
      fail(fmt::format("{} must be {}, but is {}", key, shown(only), shown(*value)));
  }
  const FolderJson& json() const { return json_; }
  static std::string shown(const FolderJson& value) {
    if (value.is_structured()) return std::string("an ") + value.type_name();  // dump() recurses
    return printable(value.dump(-1, ' ', false, FolderJson::error_handler_t::replace));
  }

 private:
  std::string path_;
  FolderJson json_;
};

/// Reads the base and the scaling of rotary positions, which newer files keep together in rope_parameters.
RopeOptions rope_in(const ConfigReader& config) {
  RopeOptions rope(config.positive(config.json(), "rope_theta", RopeOptions().base));
  for (const char* const key : {"rope_parameters", "rope_scaling"}) {
    const FolderJson* const scaling = config.find(key);
    if (scaling == nullptr) continue;
    if (!scaling->is_object()) config.fail(fmt::format("{} must be an object", key));
    rope.base = config.positive(*scaling, "rope_theta", rope.base);
    const FolderJson* type = ConfigReader::member(*scaling, "rope_type");
    if (type == nullptr) type = ConfigReader::member(*scaling, "type");
    if (type == nullptr || *type == "default") continue;
    if (*type != "linear")
      config.fail(
          fmt::format("the rope_type of {} must be default or linear, but is {}", key, ConfigReader::shown(*type)));
    rope.scaling = RopeScaling::linear;
    rope.factor = config.positive(*scaling, "factor", 1.0);
    if (rope.factor < 1) config.fail(fmt::format("the factor of {} must be at least 1, but is {}", key, rope.factor));
  }
  return rope;
}

}  // namespace

PretrainedConfig read_pretrained_config(const std::string& folder, CallSite) {
  const ConfigReader config(folder);
  if (config.find("model_type") == nullptr) config.fail("model_type is missing");
  config.expect("model_type", "llama");
  config.expect("hidden_act", "silu");
  for (const char* const biases : {"attention_bias", "mlp_bias"}) config.expect(biases, false);
  PretrainedConfig result;
  LanguageModelConfig& model = result.model;
  model.vocabulary = config.size("vocab_size");
  model.context = config.size("max_position_embeddings", 2048);
  model.layers = config.size("num_hidden_layers");
  model.width = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.kv_heads = config.size("num_key_value_heads", model.heads);
  model.hidden = config.size("intermediate_size");
  model.feed_forward = FeedForwardKind::swiglu;
  model.norm_epsilon = config.positive(config.json(), "rms_norm_eps", 1e-6);
  model.tied_head = config.flag("tie_word_embeddings");
  // A file of a tied model may have a head, too, which the model does not take.
  result.rules = model.tied_head ? llama_rules.substr(0, llama_rules.find("head.weight")) : llama_rules;
  result.rope = rope_in(config);
  try {
    model.check();
  } catch (const ValueError& error) {
    const std::string text = error.what();
    config.fail("its sizes do not fit together: " + text.substr(text.find("] ") + 2));
  }
  config.expect("head_dim", model.width / model.heads);
  return result;
}

}  // namespace poolgrad::nn
