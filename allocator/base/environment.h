// Switches of the environment: POOLGRAD_NVTX=1, POOLGRAD_SYNC=1 and their like.
#pragma once

#include <cstdlib>

namespace poolgrad {

/// Whether the variable is "1"; anything else leaves it off.
inline bool switched_on(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && text[0] == '1' && text[1] == '\0';
}

}  // namespace poolgrad
