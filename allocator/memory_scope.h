// Tags: what a byte is for (`Category`) and where it came from (the names of the scopes alive on this thread).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace poolgrad {

/// The ten attention buffer kinds, then the kinds of a training step. `scores` and `weights` stay at 0 bytes in every
/// fused attention path.
enum class Category : std::uint8_t {
  query,
  key,
  value,
  output,
  scores,
  weights,
  temp,
  comm,
  mask,
  cache,
  parameter,
  gradient,
  optimizer_state,
  activation,
  input,
  workspace,
  unknown
};
inline constexpr std::size_t category_count = 17;

std::string_view to_string(Category category);

/// Long-lived memory (parameters, optimiser state) is placed apart from transients so that it never pins their pages.
constexpr bool is_long_lived(Category category) {
  return category == Category::parameter || category == Category::optimizer_state;
}

/// What an allocation is tagged with. `scope` is an interned path id, 0 for none; see scope_name().
struct Tag {
  Category category = Category::unknown;
  std::uint32_t scope = 0;
};

/// Tags everything that this thread allocates while it is alive. Scopes nest: names join with '.', and the inner
/// category wins. Cheap: entering an already known scope is one hash lookup.
class MemoryScope {
 public:
  MemoryScope(std::string_view name, Category category);
  /// Changes the category only.
  explicit MemoryScope(Category category);
  /// Changes the name only.
  explicit MemoryScope(std::string_view name);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Tag previous_;
};

/// The tag in force on this thread.
Tag current_tag();

/// "block3.attention" for an interned scope id; "" for 0.
std::string scope_name(std::uint32_t scope);

}  // namespace poolgrad
