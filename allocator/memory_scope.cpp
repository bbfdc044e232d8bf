#include "allocator/memory_scope.h"

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "allocator/thread_state.h"

namespace poolgrad {

namespace {

constexpr std::array<std::string_view, category_count> category_names = {
    "query", "key",       "value",    "output",          "scores",     "weights", "temp",      "comm",   "mask",
    "cache", "parameter", "gradient", "optimizer_state", "activation", "input",   "workspace", "unknown"};

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

// Scope paths as a tree: each node maps the next name to its id.
struct ScopeTable {
  struct Node {
    std::string path;
    std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> children;
  };

  std::shared_mutex mutex;
  std::deque<Node> nodes{Node{}};

  std::uint32_t child(std::uint32_t parent, std::string_view name) {
    {
      std::shared_lock lock(mutex);
      const auto& children = nodes[parent].children;
      if (const auto known = children.find(name); known != children.end()) return known->second;
    }
    std::unique_lock lock(mutex);
    const auto id = static_cast<std::uint32_t>(nodes.size());
    const auto [entry, added] = nodes[parent].children.try_emplace(std::string(name), id);
    if (added) {
      std::string path = nodes[parent].path;
      if (!path.empty()) path += '.';
      nodes.push_back(Node{path.append(name), {}});
    }
    return entry->second;
  }

  std::string path(std::uint32_t scope) {
    std::shared_lock lock(mutex);
    return scope < nodes.size() ? nodes[scope].path : std::string();
  }
};

// Never destroyed: static tensors may be released after every other static object.
ScopeTable& scope_table() {
  static auto* table = new ScopeTable;
  return *table;
}

}  // namespace

std::string_view to_string(Category category) {
  const auto index = static_cast<std::size_t>(category);
  return index < category_count ? category_names[index] : "invalid";
}

MemoryScope::MemoryScope(std::string_view name, Category category) : previous_(thread_state.tag) {
  thread_state.tag = Tag{category, scope_table().child(previous_.scope, name)};
}

MemoryScope::MemoryScope(Category category) : previous_(thread_state.tag) { thread_state.tag.category = category; }

MemoryScope::MemoryScope(std::string_view name) : previous_(thread_state.tag) {
  thread_state.tag.scope = scope_table().child(previous_.scope, name);
}

MemoryScope::~MemoryScope() { thread_state.tag = previous_; }

Tag current_tag() { return thread_state.tag; }

std::string scope_name(std::uint32_t scope) { return scope_table().path(scope); }

}  // namespace poolgrad
