#include "tensor/internal/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "allocator/error.h"

namespace poolgrad {

namespace {

struct NamedType {
  DType dtype;
  std::string_view name;
};
constexpr std::array<NamedType, 8> safetensors_types{{{DType::f64, "F64"},
                                                      {DType::f32, "F32"},
                                                      {DType::f16, "F16"},
                                                      {DType::bf16, "BF16"},
                                                      {DType::i64, "I64"},
                                                      {DType::i32, "I32"},
                                                      {DType::u8, "U8"},
                                                      {DType::boolean, "BOOL"}}};

/// Receives the events of the JSON parser and refuses whatever does not belong where it stands. The depth of the
/// structure is bounded by the states, so deep nesting is refused at its first bracket too many.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    if (state_ == State::outside) return go(State::top);
    if (state_ == State::entry_value) return go(State::entry);
    if (state_ == State::metadata_value) return go(State::metadata);
    refuse("unexpected object");
  }
  bool end_object() override {
    if (state_ == State::top) return go(State::outside);
    if (state_ == State::entry && keys_.size() != 3) refuse("needs dtype, shape and data_offsets");
    return go(State::top);
  }
  bool start_array(std::size_t) override {
    if (state_ == State::shape_value) return go(State::shape);
    if (state_ == State::offsets_value) return go(State::offsets);
    refuse("unexpected array");
  }
  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2) refuse("data_offsets needs two numbers");
    return go(State::entry);
  }
  bool key(string_t& name) override {
    if (state_ == State::top) {
      if (!names_.insert(name).second) refuse("duplicate name '" + name + "'");
      keys_.clear();
      if (name == "__metadata__") return go(State::metadata_value);
      header.entries.push_back({.name = name, .dtype = {}, .unsupported = {}, .shape = {}});
      return go(State::entry_value);
    }
    if (state_ == State::metadata) {
      key_ = name;
      if (!header.metadata.emplace(name, "").second) refuse("duplicate key '" + name + "' in __metadata__");
      return go(State::metadata_text);
    }
    if (!keys_.insert(name).second) refuse("duplicate key '" + name + "'");
    offsets_ = 0;
    if (name == "dtype") return go(State::dtype_value);
    if (name == "shape") return go(State::shape_value);
    if (name == "data_offsets") return go(State::offsets_value);
    refuse("unknown key '" + name + "'");
  }
  bool string(string_t& text) override {
    if (state_ == State::metadata_text) {
      header.metadata[key_] = text;
      return go(State::metadata);
    }
    if (state_ != State::dtype_value) refuse("unexpected string");
    if (text.empty()) refuse("dtype '' is none");
    const auto type = std::find_if(safetensors_types.begin(), safetensors_types.end(),
                                   [&](const NamedType& t) { return t.name == text; });
    if (type == safetensors_types.end())
      header.entries.back().unsupported = text;
    else
      header.entries.back().dtype = type->dtype;
    return go(State::entry);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > INT64_MAX) refuse("a number beyond 2^63 - 1");
    if (state_ == State::shape) {
      Shape& shape = header.entries.back().shape;
      if (shape.rank() == max_rank) refuse("more than " + std::to_string(max_rank) + " dimensions");
      shape.append(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ != State::offsets || offsets_ == 2) refuse("unexpected number");
    (offsets_++ ? header.entries.back().end : header.entries.back().begin) = value;
    return true;
  }
  bool number_integer(number_integer_t) override { refuse("negative number"); }
  bool number_float(number_float_t, const string_t&) override { refuse("a number that is no whole number below 2^63"); }
  bool null() override { refuse("unexpected null"); }
  bool boolean(bool) override { refuse("unexpected boolean"); }
  bool binary(binary_t&) override { refuse("unexpected binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw ValueError("invalid JSON at character " + std::to_string(position) + " of the header");
  }

 private:
  enum class State {
    outside,
    top,
    entry_value,
    entry,
    dtype_value,
    shape_value,
    shape,
    offsets_value,
    offsets,
    metadata_value,
    metadata,
    metadata_text
  };

  bool go(State state) {
    state_ = state;
    return true;
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    const bool inside = state_ > State::top && state_ < State::metadata_value;
    throw ValueError(inside ? "tensor '" + header.entries.back().name + "': " + reason : reason);
  }

  State state_ = State::outside;
  std::unordered_set<std::string> names_, keys_;
  std::string key_;
  int offsets_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text) {
  if (!text.starts_with('{')) throw ValueError("the header does not begin with '{'");
  HeaderReader reader;
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return std::move(reader.header);
}

std::string safetensors_header(const SafetensorsHeader& header) {
  using Json = nlohmann::ordered_json;
  Json json = Json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries) {
    Json& value = json[entry.name];
    for (const NamedType& type : safetensors_types)
      if (type.dtype == entry.dtype) value["dtype"] = type.name;
    value["shape"] = std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end());
    value["data_offsets"] = {entry.begin, entry.end};
  }
  try {
    return json.dump();
  } catch (const Json::exception&) {
    throw ValueError("a name or a metadata text is not UTF-8");
  }
}

}  // namespace poolgrad
