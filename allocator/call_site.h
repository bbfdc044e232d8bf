// Which line of a program asked for memory, and which operator made it: what traces and reports show.
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace poolgrad {

/// The line of the program that what this thread allocates is put down to in traces and reports, and by the race
/// detector, as long as it lives. What a program calls takes one as its last parameter, `CallSite = {}`, which is the
/// line of the call. The outermost one alive counts, so that the operators inside a module or an operator are put down
/// to the line that called it. A program may also declare one: `const CallSite here;`.
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
