#include "allocator/trace/internal/snapshot_element.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "allocator/error.h"

namespace poolgrad {

std::string to_string(const ElementPath& path) {
  std::string text = path.list;
  if (path.index != SIZE_MAX) text += '[' + std::to_string(path.index) + ']';
  text += path.inner;
  if (path.inner_index != SIZE_MAX) text += '[' + std::to_string(path.inner_index) + ']';
  return text;
}

void SnapshotElements::fail(const std::string& reason) const {
  throw FileError("[read] " + path_ + ": " + to_string(at) + ": " + reason);
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

std::uint64_t SnapshotElements::number(Value dict, const char* key, std::optional<std::uint64_t> otherwise) const {
  const Value* value = find(dict, key);
  if (value == nullptr) {
    if (!otherwise) fail("no '" + std::string(key) + "'");
    return *otherwise;
  }
  if (value->kind == ValueKind::integer && !value->negative) return value->bits;
  if (value->kind == ValueKind::real) {
    double real = 0.0;
    std::memcpy(&real, &value->bits, sizeof real);
    if (real >= 0.0 && real < 0x1p63 && real == std::floor(real)) return static_cast<std::uint64_t>(real);
  }
  fail("'" + std::string(key) + "' is not a whole number of 0 or more");
}

std::string_view SnapshotElements::text(Value dict, const char* key, std::optional<std::string_view> otherwise) const {
  const Value* value = find(dict, key);
  if (value == nullptr) {
    if (!otherwise) fail("no '" + std::string(key) + "'");
    return *otherwise;
  }
  if (value->kind != ValueKind::text) fail("'" + std::string(key) + "' is not a text");
  return tree_.text_of(*value);
}

}  // namespace poolgrad
