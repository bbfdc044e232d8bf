// How much a run of the tests takes on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/test_seed.h"

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

/// All cases; in a brief run every fifth, of which five calls in a row take different ones, and always one.
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
