// Switches of the environment: POOLGRAD_NVTX=1, POOLGRAD_SYNC=1 and their like.
#pragma once

#include <cstdlib>

namespace poolgrad {

/// Whether the variable is "1", and not "0"; anything else leaves it as it is otherwise.
inline bool switched_on(const char* variable, bool otherwise = false) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || (text[0] != '0' && text[0] != '1') || text[1] != '\0') return otherwise;
  return text[0] == '1';
}

}  // namespace poolgrad
