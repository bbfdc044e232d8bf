// The amount of work of a test run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/test_seed.h"

namespace poolgrad {

/// Returns true under POOLGRAD_TESTS=brief, as in continuous integration, and under sanitizers, which record every
/// switch of a fiber. Tests then run a part of many similar cases, such as those of the emulated device.
inline bool is_brief() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#endif
  const char* text = std::getenv("POOLGRAD_TESTS");
  return text != nullptr && std::string_view(text) == "brief";
}

/// Returns all cases. In a brief run it returns every fifth, at least one; five successive calls return different ones.
template <class Case>
std::vector<Case> some_of(const std::vector<Case>& cases) {
  if (!is_brief()) return cases;
  static std::uint64_t turn = test_seed();
  std::vector<Case> some;
  if (cases.empty()) return some;
  constexpr std::size_t apart = 5;
  for (auto i = static_cast<std::size_t>(turn++ % std::min(apart, cases.size())); i < cases.size(); i += apart)
    some.push_back(cases[i]);
  return some;
}

}  // namespace poolgrad
