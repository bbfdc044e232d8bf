// Tags of allocations: the `Category`, the names of the thread's active scopes, and, in traces and reports, the
// requesting line of the program and the operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
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

/// Long-lived memory (parameters, optimizer state) is placed apart from transient blocks, so that it never pins their
/// pages.
constexpr bool is_long_lived(Category category) {
  return category == Category::parameter || category == Category::optimizer_state;
}

/// The tag of an allocation. `scope` is an interned path id, 0 for none; see scope_name().
struct Tag {
  Category category = Category::unknown;
  std::uint32_t scope = 0;
};

/// Receives the begin and end of named scopes, on the thread of the scope.
class ScopeListener {
 public:
  virtual ~ScopeListener() = default;
  /// `name`: the scope's own name; the whole path for a restored tag. current_tag() is already the scope's.
  virtual void begins(std::string_view name) noexcept = 0;
  virtual void ends() noexcept = 0;
};

/// Sets the listener of scopes that begin from now on, which must outlive them; nullptr: none. Returns the previous
/// one. A program starts with none, or with nvtx_listener() under POOLGRAD_NVTX=1.
ScopeListener* listen_to_scopes(ScopeListener* listener);
/// Shows scopes as ranges of the NVTX domain "poolgrad" in Nsight Systems. nullptr in a build without NVTX 3.
ScopeListener* nvtx_listener();

/// Tags all allocations of this thread during its lifetime. Scopes nest: names join with '.', and the inner category
/// wins. Entering a known scope costs one hash lookup.
class MemoryScope {
 public:
  MemoryScope(std::string_view name, Category category);
  /// Changes the category only.
  explicit MemoryScope(Category category);
  /// Changes the name only.
  explicit MemoryScope(std::string_view name);
  /// Restores a tag from another time or thread.
  explicit MemoryScope(Tag tag);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  void tell(std::string_view name) noexcept;

  Tag previous_;
  ScopeListener* told_ = nullptr;
};

/// The current tag of this thread.
Tag current_tag();

/// "block3.attention" for an interned scope id; "" for 0.
std::string scope_name(std::uint32_t scope);

/// Attributes the allocations of this thread during its lifetime to a line of the program, in traces, reports and the
/// race detector. Public functions take one as their last parameter, `CallSite = {}`, which is the line of the call, or
/// with their first tensor (TensorArg). The outermost one wins: operators inside a module or an operator belong to the
/// line that called it. A program may also declare one: `const CallSite here;`. Lines of the standard library do not
/// count: allocations of an object from std::make_unique belong to the lines inside its constructor.
class CallSite {
 public:
  CallSite(std::source_location at = std::source_location::current());  // NOLINT: made from {}
  /// For the backward of operator `name`: traces show "name backward" at `forward`, the line that called the operator,
  /// or at the current line if that is unknown (line 0). `name` must outlive it.
  CallSite(const std::string& name, std::source_location forward);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// The current line of this thread; line 0 for none.
  static std::source_location current();
  /// The location that a trace records for an allocation in the code at `inside`, which is an operator if Tensor::empty
  /// allocates for it. Function: the operator, or the running backward. File and line: the current ones, or those of
  /// `inside`. Never destroyed.
  static std::source_location of(std::source_location inside) noexcept;

 private:
  std::source_location previous_;
  const std::string* previous_backward_;
};

/// The function's name without result, parameters and bindings: "T ns::Pool<T>::take(int) [with T = float]" gives
/// "ns::Pool<T>::take".
std::string function_name(std::string_view signature);

}  // namespace poolgrad
