// Tags: what a byte is for (`Category`) and where it came from: the names of the scopes alive on this thread, and, in
// traces and reports, the line of the program that asked for it and the operator that made it.
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

/// Long-lived memory (parameters, optimiser state) is placed apart from transients so that it never pins their pages.
constexpr bool is_long_lived(Category category) {
  return category == Category::parameter || category == Category::optimizer_state;
}

/// What an allocation is tagged with. `scope` is an interned path id, 0 for none; see scope_name().
struct Tag {
  Category category = Category::unknown;
  std::uint32_t scope = 0;
};

/// Hears of the scopes with a name as they begin and end, each on its own thread.
class ScopeListener {
 public:
  virtual ~ScopeListener() = default;
  /// The scope's own name; of a tag of another time, the whole path. current_tag() is that of the scope.
  virtual void begins(std::string_view name) noexcept = 0;
  virtual void ends() noexcept = 0;
};

/// From now on scopes that begin are told to `listener`, which must outlive them; nullptr: to nobody. Returns who was
/// told before. At the start of a program that is nobody, or, under POOLGRAD_NVTX=1, nvtx_listener().
ScopeListener* listen_to_scopes(ScopeListener* listener);
/// Makes them ranges of the NVTX domain "poolgrad", which Nsight Systems shows. nullptr in a build without NVTX 3.
ScopeListener* nvtx_listener();

/// Tags everything that this thread allocates while it is alive. Scopes nest: names join with '.', and the inner
/// category wins. Cheap: entering an already known scope is one hash lookup.
class MemoryScope {
 public:
  MemoryScope(std::string_view name, Category category);
  /// Changes the category only.
  explicit MemoryScope(Category category);
  /// Changes the name only.
  explicit MemoryScope(std::string_view name);
  /// The tag of another time or thread, in place of the one in force.
  explicit MemoryScope(Tag tag);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  void tell(std::string_view name) noexcept;

  Tag previous_;
  ScopeListener* told_ = nullptr;
};

/// The tag in force on this thread.
Tag current_tag();

/// "block3.attention" for an interned scope id; "" for 0.
std::string scope_name(std::uint32_t scope);

/// The line of the program that what this thread allocates is put down to in traces and reports, and by the race
/// detector, as long as it lives. What a program calls takes one as its last parameter, `CallSite = {}`, which is the
/// line of the call, or with its first tensor (Argument). The outermost one alive counts, so that the operators inside
/// a module or an operator are put down to the line that called it. A program may also declare one: `const CallSite
/// here;`. A line of the standard library does not count: what std::make_unique makes is put down to its parts.
class CallSite {
 public:
  CallSite(std::source_location at = std::source_location::current());  // NOLINT: made from {}
  /// The backward of operator `name`, which a trace then calls "name backward", put down to `forward`, the line that
  /// called the operator; where that is unknown (line 0), to the line in force. `name` must outlive it.
  CallSite(const std::string& name, std::source_location forward);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// The line in force on this thread; line 0 for none.
  static std::source_location current();
  /// What a trace records of an allocation made in the code at `inside`, which is an operator if its pages come from
  /// Tensor::empty: the function is that operator, or the backward that runs; file and line are those in force, or its
  /// own. Lives for ever.
  static std::source_location of(std::source_location inside) noexcept;

 private:
  std::source_location previous_;
  const std::string* previous_backward_;
};

/// "T ns::Pool<T>::take(int) [with T = float]" -> "ns::Pool<T>::take": what a compiler calls a function, without its
/// result, parameters and bindings.
std::string function_name(std::string_view signature);

}  // namespace poolgrad
