// How much a run of the tests takes on.
#pragma once

#include <cstdlib>
#include <string_view>

namespace poolgrad {

/// POOLGRAD_TESTS=brief, as continuous integration has it, or sanitizers, which are told of every switch of a fiber: of
/// many cases that are alike, such as those of the emulated device, a part.
inline bool is_brief() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#endif
  const char* text = std::getenv("POOLGRAD_TESTS");
  return text != nullptr && std::string_view(text) == "brief";
}

}  // namespace poolgrad
