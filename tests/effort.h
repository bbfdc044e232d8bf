// How much a run of the tests takes on.
#pragma once

#include <cstdlib>
#include <string_view>

namespace poolgrad {

/// POOLGRAD_TESTS=brief, as continuous integration has it: of what is tested on the emulated device by many cases that
/// are alike, a part.
inline bool is_brief() {
  const char* text = std::getenv("POOLGRAD_TESTS");
  return text != nullptr && std::string_view(text) == "brief";
}

}  // namespace poolgrad
