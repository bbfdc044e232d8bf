#pragma once

#include <cstdlib>
#include <string_view>

namespace poolgrad {

/// POOLGRAD_BENCHMARK_SMALL=1: sizes that take no time, to see that a program works.
inline bool small_sizes() {
  const char* set = std::getenv("POOLGRAD_BENCHMARK_SMALL");
  return set != nullptr && std::string_view(set) == "1";
}

}  // namespace poolgrad
