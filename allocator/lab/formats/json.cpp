// Reads and writes JSON of memory snapshots.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "allocator/base/json_events.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/lab/formats/value_tree.h"
#include "allocator/trace/bytes.h"

namespace poolgrad {

namespace {

class TreeBuilder : public JsonEvents {
 public:
  TreeBuilder(ValueTree& tree, const std::string& path) : tree_(tree), path_(path) {}

  void start_object() override { start(); }
  void key(const std::string& name) override { push(tree_.text(name)); }
  void end_object() override { end(ValueKind::dict); }
  void start_array() override { start(); }
  void end_array() override { end(ValueKind::list); }
  void string(const std::string& text) override { push(tree_.text(text)); }
  void number_unsigned(std::uint64_t value) override { push({ValueKind::integer, false, value}); }
  void number_negative(std::int64_t value) override {
    push({ValueKind::integer, value < 0, static_cast<std::uint64_t>(value)});
  }
  void number_float(double value) override { push({ValueKind::real, false, std::bit_cast<std::uint64_t>(value)}); }
  void boolean(bool value) override { push({ValueKind::boolean, false, value}); }
  void null() override { push({}); }

  void finish() { tree_.root = stack_.at(0); }
  [[noreturn]] void fail(std::size_t position, const std::string& reason) const {
    throw FileError("[read] " + printable_path(path_) + ": byte " + std::to_string(position) + ": " + reason);
  }

 private:
  void push(Value value) { stack_.push_back(value); }
  void start() {
    starts_.push_back(stack_.size());
    if (!tree_.may_grow()) fail(0, "more lists and dictionaries than a snapshot of this size has");
  }
  void end(ValueKind kind) {
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(starts_.back());
    starts_.pop_back();
    const Value container = tree_.container(kind);
    tree_.items(container).assign(from, stack_.end());
    stack_.erase(from, stack_.end());
    push(container);
  }

  ValueTree& tree_;
  const std::string& path_;
  std::vector<Value> stack_;
  std::vector<std::size_t> starts_;
};

class JsonWriter {
 public:
  explicit JsonWriter(const ValueTree& tree) : tree_(tree) {}

  std::string write() {
    write(tree_.root);
    return std::string(out_.view());
  }

 private:
  void write(Value value) {
    switch (value.kind) {
      case ValueKind::none: return out_.raw("null");
      case ValueKind::boolean: return out_.raw(value.bits != 0 ? "true" : "false");
      case ValueKind::integer:
        return value.negative ? out_.raw(std::to_string(static_cast<std::int64_t>(value.bits)))
                              : out_.digits(value.bits);
      case ValueKind::real: return out_.raw(nlohmann::json(std::bit_cast<double>(value.bits)).dump());
      case ValueKind::text: return out_.raw(text(value));
      case ValueKind::list:
      case ValueKind::dict: write_items(value);
    }
  }
  void write_items(Value container) {
    const bool dict = container.kind == ValueKind::dict;
    const auto items = tree_.items(container);
    out_.u8(dict ? '{' : '[');
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.u8(dict && i % 2 != 0 ? ':' : ',');
      write(items[i]);
    }
    out_.u8(dict ? '}' : ']');
  }
  // Escapes each text once.
  const std::string& text(Value value) {
    if (value.bits >= texts_.size()) texts_.resize(2 * value.bits + 1);
    std::string& known = texts_[value.bits];
    if (known.empty()) known = json_text(tree_.text_of(value));
    return known;
  }

  const ValueTree& tree_;
  ByteWriter out_;
  std::vector<std::string> texts_;
};

}  // namespace

std::string json_text(const ValueTree& tree) { return JsonWriter(tree).write(); }

std::string json_text(std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::ranges::all_of(text, plain)) return '"' + std::string(text) + '"';
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string utf8_text(std::string_view text) { return nlohmann::json::parse(json_text(text)).get<std::string>(); }

void read_json(std::string_view bytes, const std::string& path, ValueTree& tree) {
  TreeBuilder builder(tree, path);
  if (const auto fault = parse_json(bytes, builder)) builder.fail(*fault, "not JSON");
  builder.finish();
}

}  // namespace poolgrad
