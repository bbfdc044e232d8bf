#include "examples/support/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::examples {

namespace {

/// Throws ValueError for entry `place` of a list, counted from 1.
[[noreturn]] void refuse_entry(std::size_t place, const std::string& entry, const std::string& reason) {
  throw ValueError(fmt::format("[--layers] entry {}, {}: {}", place, printable(entry), reason));
}

template <class Number>
Number value_of(const std::string& part, const std::string& text) {
  const auto number = number_in<Number>(text);
  if (!number) throw ValueError(fmt::format("{} cannot be a value of {}", printable(text), part));
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(*number)) throw ValueError(fmt::format("{} cannot be a value of {}", printable(text), part));
  return *number;
}

void read_value(const std::string& part, const std::string& text, std::string& value) {
  if (text.empty()) throw ValueError("a value of " + part + " is empty");
  value = text;
}
template <class Number>
void read_value(const std::string& part, const std::string& text, Number& value) {
  value = value_of<Number>(part, text);
}
void read_value(const std::string& part, const std::string& text, std::vector<std::int64_t>& values) {
  values.clear();
  for (const std::string& one : split(text, '/')) values.push_back(value_of<std::int64_t>(part, one));
}

/// Parses one entry into the attention of a layer.
class EntryReader {
 public:
  explicit EntryReader(const AttentionOptions& usual) : layer_(usual) {}

  /// Throws ValueError with only the reason.
  AttentionOptions read(std::string_view parts) {
    for (const std::string& part : split(parts, '+')) read_part(part);
    if (!said("a kind")) throw ValueError("it names no kind of attention, such as causal");
    for (const char* const part : {"rope", "softcap", "sinks", "qk-norm", "kv-heads"})
      if (layer_.is_recurrent() && said(part == std::string_view("rope") && layer_.rope ? "positions" : part))
        throw ValueError(fmt::format("{} takes no {}", layer_.attention, part));
    for (const char* const part : {"softcap", "sinks"})
      if (layer_.attention == "nsa" && said(part)) throw ValueError(fmt::format("nsa takes no {}", part));
    return layer_;
  }

 private:
  bool said(std::string_view subject) const { return std::ranges::find(said_, subject) != said_.end(); }
  void say_once(const std::string& subject) {
    if (said(subject)) throw ValueError("it gives " + subject + " twice");
    said_.push_back(subject);
  }

  void read_part(const std::string& part) {
    constexpr std::string_view alone = "nope:";
    if (part.starts_with(alone)) {
      read_part("nope");
      return read_part(part.substr(alone.size()));
    }
    const std::vector<std::string> words = split(part, ':');
    const std::string& name = words.front();
    const std::vector<std::string> values(words.begin() + 1, words.end());
    const auto take = [&](const std::string& subject, std::size_t most) {
      say_once(subject);
      if (values.size() > most)
        throw ValueError(
            fmt::format("{} has {}, not {}", name, plural(static_cast<std::int64_t>(most), "value"), values.size()));
    };
    const auto take_one = [&](auto& value) {
      take(name, 1);
      if (values.empty()) throw ValueError(fmt::format("{0} needs a value, such as {0}:4", name));
      read_value(name, values[0], value);
    };
    if (name == "nope") {
      take("positions", 0);
      layer_.rope.reset();
    } else if (name == "rope") {
      take("positions", 4);
      layer_.rope = rope_of(values);
    } else if (name == "softcap") {
      take_one(layer_.softcap.emplace());
      if (!(*layer_.softcap > 0)) throw ValueError("softcap must be positive");
    } else if (name == "sinks") {
      take(name, 0);
      layer_.sinks = true;
    } else if (name == "qk-norm") {
      take(name, 0);
      layer_.qk_norm = true;
    } else if (name == "heads" || name == "kv-heads") {
      std::int64_t& heads = name == "heads" ? layer_.heads : layer_.kv_heads;
      take_one(heads);
      if (heads < 1) throw ValueError(name + " must be at least 1");
    } else if (std::ranges::find(attention_names(), name) != attention_names().end()) {
      take("a kind", values.size());
      read_kind(name, values);
    } else {
      std::vector<std::string> names{"rope", "nope", "softcap", "sinks", "qk-norm", "heads", "kv-heads"};
      names.insert(names.end(), attention_names().begin(), attention_names().end());
      const std::string near = nearest(name, names);
      throw ValueError(fmt::format("it has an unknown part {}{}", printable(name),
                                   near.empty() ? "" : fmt::format(": did you mean {}?", near)));
    }
  }

  /// The values of a kind's options, in order.
  void read_kind(const std::string& kind, const std::vector<std::string>& values) {
    layer_.attention = kind;
    std::size_t next = 0;
    for_each_attention_setting(layer_, [&](const char* option, auto& value, const std::string&) {
      if (next < values.size() && is_of_attention(option, {kind})) read_value(kind, values[next++], value);
    });
    if (next < values.size())
      throw ValueError(
          fmt::format("{} has {}, not {}", kind, plural(static_cast<std::int64_t>(next), "value"), values.size()));
  }

  RopeOptions rope_of(const std::vector<std::string>& values) const {
    RopeOptions rope = layer_.rope.value_or(RopeOptions());
    if (values.empty()) return rope;
    read_value("rope", values[0], rope.base);
    if (!(rope.base > 0)) throw ValueError("the base of rope must be positive");
    if (values.size() == 1) return rope;
    const std::pair<const char*, RopeScaling> scalings[] = {
        {"linear", RopeScaling::linear}, {"ntk", RopeScaling::ntk}, {"yarn", RopeScaling::yarn}};
    const auto* const scaling = std::ranges::find(scalings, values[1], [](const auto& one) { return one.first; });
    if (scaling == std::end(scalings))
      throw ValueError("the scaling of rope must be linear, ntk or yarn, but is " + printable(values[1]));
    rope.scaling = scaling->second;
    const std::size_t wanted = rope.scaling == RopeScaling::yarn ? 4 : 3;
    if (values.size() != wanted)
      throw ValueError(wanted == 4 ? "yarn needs rope:BASE:yarn:FACTOR:TRAINED, with the trained context"
                                   : fmt::format("{0} needs rope:BASE:{0}:FACTOR", values[1]));
    read_value("rope", values[2], rope.factor);
    if (rope.factor < 1) throw ValueError("the factor of rope must be at least 1");
    if (wanted == 4) read_value("rope", values[3], rope.trained_context);
    if (wanted == 4 && rope.trained_context < 1) throw ValueError("the trained context of yarn must be at least 1");
    return rope;
  }

  AttentionOptions layer_;
  std::vector<std::string> said_;
};

/// The reason of an error, without its prefix in brackets.
std::string reason_of(const Error& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

}  // namespace

std::int64_t LayerList::count() const {
  std::int64_t count = 0;
  for (const LayerRun& run : runs({})) count += run.count;
  return count;
}

std::vector<LayerRun> LayerList::runs(const AttentionOptions& usual) const {
  if (const auto number = number_in<std::int64_t>(text_)) return {{usual, *number}};
  std::vector<LayerRun> runs;
  std::int64_t layers = 0;
  for (const std::string& entry : split(text_, ',')) {
    const std::size_t place = runs.size() + 1, star = entry.find('*');
    try {
      const std::size_t begin = star == std::string::npos ? 0 : star + 1;
      const std::int64_t count = begin == 0 ? 1 : value_of<std::int64_t>("a repetition", entry.substr(0, star));
      if (count < 1) throw ValueError("a repetition must be at least 1");
      if (count > LayerList::most || (layers += count) > LayerList::most)
        throw ValueError(fmt::format("a list has at most {} layers", LayerList::most));
      runs.push_back({EntryReader(usual).read(std::string_view(entry).substr(begin)), count, entry});
    } catch (const Error& error) {
      refuse_entry(place, entry, error.what());
    }
  }
  return runs;
}

std::string describe_layers(const std::vector<LayerRun>& runs, std::int64_t context) {
  std::string text;
  for (const LayerRun& run : runs) {
    if (!text.empty()) text += "; ";
    if (runs.size() > 1 && run.count > 1) text += fmt::format("{} times ", run.count);
    text += run.attention.describe(context);
  }
  return text;
}

std::vector<std::string> kinds_of(const std::vector<LayerRun>& runs) {
  std::vector<std::string> kinds;
  for (const LayerRun& run : runs)
    if (std::ranges::find(kinds, run.attention.attention) == kinds.end()) kinds.push_back(run.attention.attention);
  return kinds;
}

void check_layers(const std::vector<LayerRun>& runs, const nn::LanguageModelConfig& model, const std::string& program) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const AttentionOptions& layer = runs[i].attention;
    try {
      layer.pattern(model.context, program);
      const std::int64_t heads = runs[i].heads(model), kv_heads = runs[i].kv_heads(model);
      const auto refuse = [](const std::string& reason) { throw ValueError("[layer] " + reason); };
      if (model.width % heads != 0)
        refuse(fmt::format("--width {} is not divisible by {}", model.width, plural(heads, "head")));
      if (layer.rope && !layer.is_recurrent() && model.width / heads % 2 != 0)
        refuse(fmt::format("--width {} / {} must be even, because rotary positions rotate pairs", model.width,
                           plural(heads, "head")));
      if (heads % kv_heads != 0)
        refuse(fmt::format("{} are not a multiple of {}", plural(heads, "head"), plural(kv_heads, "kv-head")));
    } catch (const Error& error) {
      if (runs[i].entry.empty()) throw;
      refuse_entry(i + 1, runs[i].entry, reason_of(error));
    }
  }
}

void check_one_source(const LayerList& layers, const std::set<std::string>& given) {
  if (!layers.is_number() && given.contains("attention"))
    throw ValueError("[--attention] --layers already lists the attention of each layer: give one of the two options");
}

std::vector<Contender> contenders_of(const LayerList& layers, const std::string& kinds, const std::string& program) {
  const bool by_kind = layers.is_number();
  const char* const option = by_kind ? "--attention" : "--layers";
  const std::string& text = by_kind ? kinds : layers.text();
  if (text.empty()) throw ValueError(fmt::format("[{}] {} lists nothing", program, option));
  std::vector<Contender> contenders;
  for (const std::string& name : split(text, by_kind ? ',' : ';')) {
    if (by_kind) check_attention_name(name, program, option);
    if (std::ranges::find(contenders, name, &Contender::name) != contenders.end())
      throw ValueError(fmt::format("[{}] {} names {} twice", program, option, printable(name)));
    contenders.push_back({name, by_kind ? layers : LayerList(name), by_kind ? name : kinds});
  }
  return contenders;
}

std::vector<attention::MixerSpec> specs_of(const std::vector<LayerRun>& runs, std::int64_t context,
                                           const std::string& program, double output_deviation,
                                           const attention::RingSetup& processes) {
  std::vector<attention::MixerSpec> specs;
  for (const LayerRun& run : runs)
    specs.insert(specs.end(), static_cast<std::size_t>(runs.size() == 1 ? 1 : run.count),
                 run.attention.spec(context, program, output_deviation, processes));
  return specs;
}

}  // namespace poolgrad::examples
