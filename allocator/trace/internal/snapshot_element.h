// Access to the elements of a snapshot that was read from outside: a missing key or a value of another kind is an error
// that names the element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "allocator/trace/internal/value_tree.h"

namespace poolgrad {

/// Where an element is: `list[index].inner[inner_index]`.
struct ElementPath {
  const char* list = "snapshot";
  std::size_t index = SIZE_MAX;
  const char* inner = "";
  std::size_t inner_index = SIZE_MAX;
};

std::string to_string(const ElementPath& path);

class SnapshotElements {
 public:
  SnapshotElements(ValueTree& tree, const std::string& path) : tree_(tree), path_(path) {}

  /// Which element the following calls are about.
  ElementPath at;

  [[noreturn]] void fail(const std::string& reason) const;

  /// A dictionary of not too many keys: it may be referred to very often.
  Value dictionary(Value value) const;
  /// The items of a list that nothing else refers to.
  std::span<const Value> list(Value value, const char* what);
  /// A whole number of 0 or more; `otherwise` where the key is missing or None.
  std::uint64_t number(Value dict, const char* key, std::optional<std::uint64_t> otherwise = {}) const;
  std::string_view text(Value dict, const char* key, std::optional<std::string_view> otherwise = {}) const;
  /// Null where the key is missing or None.
  const Value* find(Value dict, const char* key) const;

  ValueTree& tree() const { return tree_; }

 private:
  ValueTree& tree_;
  const std::string& path_;
};

}  // namespace poolgrad
