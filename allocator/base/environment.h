// Switches from environment variables, such as POOLGRAD_NVTX=1 and POOLGRAD_SYNC=1.
#pragma once

#include <cstdlib>

namespace poolgrad {

/// True for "1", false for "0", else `otherwise`.
inline bool switched_on(const char* variable, bool otherwise = false) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || (text[0] != '0' && text[0] != '1') || text[1] != '\0') return otherwise;
  return text[0] == '1';
}

}  // namespace poolgrad
