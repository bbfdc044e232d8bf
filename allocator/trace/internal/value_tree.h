// Plain data read from a pickle or from JSON. Values refer to containers and texts by number, so shared and even cyclic
// data (which a pickle can describe) need no counting, no recursion and no cleaning up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/salted_map.h"

namespace poolgrad {

enum class ValueKind : std::uint8_t { none, boolean, integer, real, text, list, dict };

struct Value {
  ValueKind kind = ValueKind::none;
  bool negative = false;   // an integer below 0; `bits` is then its two's complement
  std::uint64_t bits = 0;  // integer, boolean; number of the text or container; bits of a real
};

class ValueTree {
 public:
  // --- building, with a stack as a pickle does it

  /// `bytes` of the source: bounds how many containers are believed.
  explicit ValueTree(std::size_t bytes) : most_containers_(1000 + bytes / 4) {}
  ValueTree(ValueTree&&) = default;
  ValueTree& operator=(ValueTree&&) = default;

  /// The same text gets the same number.
  Value text(std::string_view text);
  Value container(ValueKind kind);
  /// Whether another container may be made: real snapshots have many bytes for each.
  bool may_grow() const { return containers_.size() < most_containers_; }
  std::vector<Value>& items(Value container) { return containers_[container.bits].items; }

  Value root;
  unsigned protocol = 0;          // of a pickle
  std::size_t longest_batch = 0;  // items that one opcode of a pickle appended

  // --- reading

  /// Items of a list, or keys and values of a dictionary in turns.
  std::span<const Value> items(Value container) const { return containers_[container.bits].items; }
  std::string_view text_of(Value text) const { return texts_[text.bits]; }
  /// The value of the last such key; null if there is none or `dict` is no dictionary.
  const Value* find(Value dict, std::string_view key) const;
  /// True once for each container: what is shared is not to be expanded again and again.
  bool first_visit(Value container);

 private:
  struct Container {
    std::vector<Value> items;
    bool visited = false;
  };

  std::vector<Container> containers_;
  SaltedTextMap<std::uint64_t> numbers_;
  std::vector<std::string_view> texts_;  // keys of numbers_
  std::size_t most_containers_;
};

/// Both throw FileError that names `path` and the offset.
ValueTree read_pickle(std::string_view bytes, const std::string& path);
ValueTree read_json(std::string_view bytes, const std::string& path);

/// Where an element is: `list[index].inner[inner_index]`.
struct ElementPath {
  const char* list = "snapshot";
  std::size_t index = SIZE_MAX;
  const char* inner = "";
  std::size_t inner_index = SIZE_MAX;
};

std::string to_string(const ElementPath& path);

/// Access to the elements of a snapshot that was read from outside: a missing key or a value of another kind is an
/// error that names the element.
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
  /// The frames of an element, which many may share; null where it has none.
  const Value* frames(Value dict) const;
  /// Calls visit(item, index) for each item of a list, which then is what the calls are about; afterwards it is the
  /// list.
  template <class Visit>
  void for_each(Value items, const char* name, Visit visit) {
    at = {name};
    std::size_t index = 0;
    for (const Value item : list(items, name)) {
      at = {name, index};
      visit(item, index++);
    }
    at = {name};
  }
  /// A whole number of 0 or more; `otherwise` where the key is missing or None.
  std::uint64_t number(Value dict, const char* key, std::optional<std::uint64_t> otherwise = {}) const;
  std::string_view text(Value dict, const char* key, std::optional<std::string_view> otherwise = {}) const;
  /// Null where the key is missing or None.
  const Value* find(Value dict, const char* key) const;
  /// An error where it is.
  Value need(Value dict, const char* key) const;

 private:
  ValueTree& tree_;
  const std::string& path_;
};

}  // namespace poolgrad
