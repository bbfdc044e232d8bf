// Reads and writes JSON of memory snapshots.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "allocator/base/json_events.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/lab/formats/emitters.h"
#include "allocator/lab/formats/value_tree.h"

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

}  // namespace

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
