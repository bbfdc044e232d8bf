// JSON as nlohmann's library reads and writes it.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "allocator/error.h"
#include "allocator/trace/internal/emitters.h"
#include "allocator/trace/internal/value_tree.h"

namespace poolgrad {

namespace {

// Receives the parser's events; the parser keeps no stack of calls, whatever the depth.
class TreeBuilder {
 public:
  explicit TreeBuilder(ValueTree& tree) : tree_(tree) {}

  bool null() { return push({}); }
  bool boolean(bool value) { return push({ValueKind::boolean, false, value}); }
  bool number_integer(std::int64_t value) {
    return push({ValueKind::integer, value < 0, static_cast<std::uint64_t>(value)});
  }
  bool number_unsigned(std::uint64_t value) { return push({ValueKind::integer, false, value}); }
  bool number_float(double value, const std::string&) {
    return push({ValueKind::real, false, std::bit_cast<std::uint64_t>(value)});
  }
  bool string(const std::string& value) { return push(tree_.text(value)); }
  bool binary(const std::vector<std::uint8_t>&) { return false; }
  bool start_object(std::size_t) { return start(); }
  bool key(const std::string& value) { return push(tree_.text(value)); }
  bool end_object() { return end(ValueKind::dict); }
  bool start_array(std::size_t) { return start(); }
  bool end_array() { return end(ValueKind::list); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    position_ = position;
    reason_ = error.what();
    return false;
  }

  void finish(bool parsed, const std::string& path) {
    if (!parsed)
      throw FileError("[read] " + path + ": byte " + std::to_string(position_) + ": " +
                      (reason_.empty() ? "more lists and dictionaries than a snapshot of this size has" : reason_));
    tree_.root = stack_.at(0);
  }

 private:
  bool push(Value value) {
    stack_.push_back(value);
    return true;
  }
  bool start() {
    starts_.push_back(stack_.size());
    return tree_.may_grow();
  }
  bool end(ValueKind kind) {
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(starts_.back());
    starts_.pop_back();
    const Value container = tree_.container(kind);
    tree_.items(container).assign(from, stack_.end());
    stack_.erase(from, stack_.end());
    return push(container);
  }

  ValueTree& tree_;
  std::vector<Value> stack_;
  std::vector<std::size_t> starts_;
  std::size_t position_ = 0;
  std::string reason_;
};

}  // namespace

std::string json_text(std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::ranges::all_of(text, plain)) return '"' + std::string(text) + '"';
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string utf8_text(std::string_view text) { return nlohmann::json::parse(json_text(text)).get<std::string>(); }

ValueTree read_json(std::string_view bytes, const std::string& path) {
  ValueTree tree(bytes.size());
  TreeBuilder builder(tree);
  builder.finish(nlohmann::json::sax_parse(bytes.begin(), bytes.end(), &builder), path);
  return tree;
}

}  // namespace poolgrad
