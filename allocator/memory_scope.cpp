#include "allocator/memory_scope.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "allocator/base/environment.h"
#include "allocator/base/fork.h"
#include "allocator/thread_cache/thread_cache.h"

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

std::shared_mutex& scopes_mutex() { return scope_table().mutex; }

std::string_view to_string(Category category) {
  const auto index = static_cast<std::size_t>(category);
  return index < category_count ? category_names[index] : "invalid";
}

namespace {

std::atomic<ScopeListener*>& scope_listener() {
  static std::atomic<ScopeListener*> listener = switched_on("POOLGRAD_NVTX") ? nvtx_listener() : nullptr;
  return listener;
}

}  // namespace

ScopeListener* listen_to_scopes(ScopeListener* listener) { return scope_listener().exchange(listener); }

void MemoryScope::tell(std::string_view name) noexcept {
  told_ = scope_listener().load(std::memory_order_acquire);
  if (told_ != nullptr) [[unlikely]]
    told_->begins(name);
}

MemoryScope::MemoryScope(std::string_view name, Category category) : previous_(thread_state.tag) {
  thread_state.tag = Tag{category, scope_table().child(previous_.scope, name)};
  tell(name);
}

MemoryScope::MemoryScope(Category category) : previous_(thread_state.tag) { thread_state.tag.category = category; }

MemoryScope::MemoryScope(std::string_view name) : previous_(thread_state.tag) {
  thread_state.tag.scope = scope_table().child(previous_.scope, name);
  tell(name);
}

MemoryScope::MemoryScope(Tag tag) : previous_(thread_state.tag) {
  thread_state.tag = tag;
  if (tag.scope != 0 && tag.scope != previous_.scope && scope_listener().load() != nullptr) tell(scope_name(tag.scope));
}

MemoryScope::~MemoryScope() {
  if (told_ != nullptr) [[unlikely]]
    told_->ends();
  thread_state.tag = previous_;
}

Tag current_tag() { return thread_state.tag; }

std::string scope_name(std::uint32_t scope) { return scope_table().path(scope); }

namespace {

/// A source_location of our own: a pointer to four fields, laid out as the compiler's.
struct Place {
  const char* file;
  const char* function;
  std::uint_least32_t line, column;
};
static_assert(sizeof(std::source_location) == sizeof(const Place*));

/// One Place for each line and operator. Never destroyed: traces hold them.
struct PlaceTable {
  std::mutex mutex;
  std::map<std::tuple<std::string_view, std::uint_least32_t, std::string>, Place> places;

  const Place* find_or_add(std::source_location at, std::string function) {
    const std::lock_guard lock(mutex);
    const auto [entry, added] =
        places.try_emplace({at.file_name(), at.line(), std::move(function)}, Place{at.file_name(), "", at.line(), 0});
    if (added) entry->second.function = std::get<2>(entry->first).c_str();
    return &entry->second;
  }
};

PlaceTable& place_table() {
  static auto* table = new PlaceTable;
  return *table;
}

}  // namespace

std::mutex& places_mutex() { return place_table().mutex; }

namespace {

/// The folder of the standard library's headers. Code there calls constructors for std::make_unique and similar
/// functions.
const std::string& standard_library() {
  struct Made {
    explicit Made(std::source_location here = std::source_location::current()) : at(here) {}
    std::source_location at;
  };
  static const auto* const folder = new std::string(  // lives for ever, as threads may
      std::filesystem::path(std::make_unique<Made>()->at.file_name()).parent_path().parent_path().string() + "/");
  return *folder;
}

bool is_of_standard_library(const std::source_location& at) {
  const std::string& folder = standard_library();
  return std::strncmp(at.file_name(), folder.c_str(), folder.size()) == 0;
}

}  // namespace

CallSite::CallSite(std::source_location at)
    : previous_(thread_state.call_site), previous_backward_(thread_state.backward_of) {
  if (previous_.line() == 0 && !is_of_standard_library(at)) thread_state.call_site = at;
}

CallSite::CallSite(const std::string& name, std::source_location forward)
    : previous_(thread_state.call_site), previous_backward_(thread_state.backward_of) {
  if (forward.line() != 0) thread_state.call_site = forward;
  thread_state.backward_of = &name;
}

CallSite::~CallSite() {
  thread_state.call_site = previous_;
  thread_state.backward_of = previous_backward_;
}

std::source_location CallSite::current() { return thread_state.call_site; }

std::source_location CallSite::of(std::source_location inside) noexcept {
  const std::source_location at = thread_state.call_site.line() != 0 ? thread_state.call_site : inside;
  const std::string* backward = thread_state.backward_of;
  if (backward == nullptr && at.line() == inside.line() && at.file_name() == inside.file_name()) return inside;
  try {
    return std::bit_cast<std::source_location>(
        place_table().find_or_add(at, backward ? *backward + " backward" : function_name(inside.function_name())));
  } catch (const std::bad_alloc&) {  // a shorter description
    return at;
  }
}

std::string function_name(std::string_view signature) {
  int depth = 0;  // of nested < >
  std::size_t begin = 0;
  for (std::size_t i = 0; i < signature.size(); ++i) {
    const char c = signature[i];
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (depth > 0) continue;
    if (c == ' ') begin = i + 1;
    if (c == '(' && !signature.substr(i).starts_with("(anonymous") && i > begin)
      return std::string(signature.substr(begin, i - begin));
  }
  return std::string(signature);
}

}  // namespace poolgrad
