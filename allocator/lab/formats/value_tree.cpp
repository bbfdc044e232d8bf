#include "allocator/lab/formats/value_tree.h"

#include <bit>
#include <cmath>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad {

Value ValueTree::text(std::string_view text) {
  const auto known = numbers_.find(text);
  if (known != numbers_.end()) return {ValueKind::text, false, known->second};
  const std::uint64_t number = texts_.size();
  texts_.push_back(numbers_.emplace(std::string(text), number).first->first);
  return {ValueKind::text, false, number};
}

Value ValueTree::container(ValueKind kind) {
  containers_.emplace_back();
  return {kind, false, containers_.size() - 1};
}

bool ValueTree::remove_newest(Value container) {
  if (container.bits + 1 != containers_.size() || !containers_.back().items.empty()) return false;
  containers_.pop_back();
  return true;
}

const Value* ValueTree::find(Value dict, std::string_view key) const {
  if (dict.kind != ValueKind::dict) return nullptr;
  const std::span<const Value> pairs = items(dict);
  for (std::size_t i = pairs.size(); i >= 2; i -= 2)
    if (pairs[i - 2].kind == ValueKind::text && text_of(pairs[i - 2]) == key) return &pairs[i - 1];
  return nullptr;
}

bool ValueTree::first_visit(Value container) { return !std::exchange(containers_.at(container.bits).visited, true); }

std::string to_string(const ElementPath& path) {
  std::string text = path.list;
  if (path.index != SIZE_MAX) text += '[' + std::to_string(path.index) + ']';
  text += path.inner;
  if (path.inner_index != SIZE_MAX) text += '[' + std::to_string(path.inner_index) + ']';
  return text;
}

void SnapshotElements::fail(const std::string& reason) const {
  throw FileError("[read] " + printable_path(path_) + ": " + to_string(at) + ": " + reason);
}

Value SnapshotElements::dictionary(Value value) const {
  constexpr std::size_t most_keys = 64;
  if (value.kind != ValueKind::dict) fail("not a dictionary");
  if (tree_.items(value).size() > 2 * most_keys) fail("a dictionary of more than 64 keys");
  return value;
}

std::span<const Value> SnapshotElements::list(Value value, const char* what) {
  if (value.kind != ValueKind::list) fail(std::string(what) + " is not a list");
  if (!tree_.first_visit(value)) fail(std::string(what) + " is a list that was used before");
  return std::as_const(tree_).items(value);
}

const Value* SnapshotElements::find(Value dict, const char* key) const {
  const Value* value = tree_.find(dict, key);
  return value == nullptr || value->kind == ValueKind::none ? nullptr : value;
}

Value SnapshotElements::need(Value dict, const char* key) const {
  const Value* value = find(dict, key);
  if (value == nullptr) fail("no '" + std::string(key) + "'");
  return *value;
}

const Value* SnapshotElements::frames(Value dict) const {
  const Value* frames = find(dict, "frames");
  if (frames != nullptr && frames->kind != ValueKind::list) fail("'frames' is not a list");
  return frames;
}

std::uint64_t SnapshotElements::number_of(Value value, const char* key) const {
  if (value.kind == ValueKind::integer && !value.negative) return value.bits;
  if (value.kind == ValueKind::real) {
    const auto real = std::bit_cast<double>(value.bits);
    if (real >= 0.0 && real < 0x1p63 && real == std::floor(real)) return static_cast<std::uint64_t>(real);
  }
  fail("'" + std::string(key) + "' is not a whole number of 0 or more");
}

std::string_view SnapshotElements::text_of(Value value, const char* key) const {
  if (value.kind != ValueKind::text) fail("'" + std::string(key) + "' is not a text");
  return tree_.text_of(value);
}

std::uint64_t SnapshotElements::number(Value dict, const char* key, std::optional<std::uint64_t> otherwise) const {
  if (otherwise && find(dict, key) == nullptr) return *otherwise;
  return number_of(need(dict, key), key);
}

std::string_view SnapshotElements::text(Value dict, const char* key, std::optional<std::string_view> otherwise) const {
  if (otherwise && find(dict, key) == nullptr) return *otherwise;
  return text_of(need(dict, key), key);
}

}  // namespace poolgrad
