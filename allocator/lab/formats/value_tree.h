// Plain data from a pickle or JSON. Values refer to containers and texts by number, so shared and even cyclic data
// (which a pickle can describe) needs no reference counts, recursion or cleanup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // --- building, on a stack as in a pickle

  /// `bytes` of the source limit the number of containers.
  explicit ValueTree(std::size_t bytes) : most_containers_(1000 + bytes / 4) {}
  ValueTree(ValueTree&&) = default;
  ValueTree& operator=(ValueTree&&) = default;

  /// Equal texts get equal numbers.
  Value text(std::string_view text);
  Value container(ValueKind kind);
  /// Whether another container may be added: real snapshots have many bytes per container.
  bool may_grow() const { return containers_.size() < most_containers_; }
  std::vector<Value>& items(Value container) { return containers_.at(container.bits).items; }
  /// Removes a container without items, if it is the newest one.
  bool remove_newest(Value container);

  Value root;

  // --- reading

  /// Items of a list, or alternating keys and values of a dictionary.
  std::span<const Value> items(Value container) const { return containers_.at(container.bits).items; }
  std::string_view text_of(Value text) const { return texts_[text.bits]; }
  /// The last value for the key; null if there is none or `dict` is no dictionary.
  const Value* find(Value dict, std::string_view key) const;
  /// True once per container, so that shared containers are expanded once.
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

/// Takes a dictionary of a list in the list `device_traces`, as keys and values, when it is complete.
using EntrySink = std::function<void(std::size_t list, std::size_t index, std::span<const Value> pairs)>;

/// Both throw FileError that names `path` and the offset. The tree does not hold the entries that a `sink`
/// takes. Dictionaries in a form that Python's pickle does not write stay in the tree.
void read_pickle(std::string_view bytes, const std::string& path, ValueTree& tree, const EntrySink& sink = {});
void read_json(std::string_view bytes, const std::string& path, ValueTree& tree);

/// Returns the root as JSON. The tree must not be cyclic. Writes a shared container at each reference.
std::string json_text(const ValueTree& tree);
/// `text` with quotes and escapes. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
/// `text` with bytes that are not UTF-8 replaced by U+FFFD.
std::string utf8_text(std::string_view text);

/// The location of an element: `list[index].inner[inner_index]`.
struct ElementPath {
  const char* list = "snapshot";
  std::size_t index = SIZE_MAX;
  const char* inner = "";
  std::size_t inner_index = SIZE_MAX;
};

std::string to_string(const ElementPath& path);

/// Typed access to the elements of an untrusted snapshot. A missing key or a value of another type is an error that
/// names the element.
class SnapshotElements {
 public:
  SnapshotElements(ValueTree& tree, const std::string& path) : tree_(tree), path_(path) {}

  /// The current element, for error messages.
  ElementPath at;

  [[noreturn]] void fail(const std::string& reason) const;

  /// A dictionary with a limited number of keys, because it may be referred to often.
  Value dictionary(Value value) const;
  /// The items of a list that has no other references.
  std::span<const Value> list(Value value, const char* what);
  /// The frames of an element, which elements may share; null if it has none.
  const Value* frames(Value dict) const;
  /// Calls visit(item, index) for each item of a list, with `at` set to the item; then restores it.
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
  std::uint64_t number_of(Value value, const char* key) const;
  std::string_view text_of(Value value, const char* key) const;
  /// An integer of at least 0; `otherwise` if the key is missing or None.
  std::uint64_t number(Value dict, const char* key, std::optional<std::uint64_t> otherwise = {}) const;
  std::string_view text(Value dict, const char* key, std::optional<std::string_view> otherwise = {}) const;
  /// Null if the key is missing or None.
  const Value* find(Value dict, const char* key) const;
  /// The same, but a missing key is an error.
  Value need(Value dict, const char* key) const;

 private:
  ValueTree& tree_;
  const std::string& path_;
};

}  // namespace poolgrad
