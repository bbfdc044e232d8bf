// An episode runs one random script on one random pool. A failing script is shrunk and shown.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tests/allocator/fuzz/generator.h"
#include "tests/allocator/fuzz/isolation.h"
#include "tests/allocator/fuzz/pool_fuzzer.h"
#include "tests/allocator/fuzz/shrinker.h"
#include "tests/test_seed.h"

namespace poolgrad::testing {

/// Returns POOLGRAD_FUZZ_OPERATIONS if it is set, else `otherwise`.
inline std::size_t fuzz_operations(std::size_t otherwise) {
  const char* text = std::getenv("POOLGRAD_FUZZ_OPERATIONS");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

struct Failure {
  PoolSetup setup;
  Script script;
  std::string what;

  std::string text() const { return what + "\non " + to_string(setup) + ", after:\n" + to_string(script); }
};

/// Returns "" or the error, even if the error ends the program.
template <class PoolType>
std::string run_script(const PoolSetup& setup, const Script& script) {
  return in_child([&] { return PoolFuzzer<PoolType>(setup).run(script); });
}

/// Returns the shortest script found that still fails on this pool, with any error.
template <class PoolType>
Failure shrunk(const PoolSetup& setup, const Script& script, std::size_t attempts = 1500) {
  Failure failure{setup, script, ""};
  failure.script = shrink(
      script, [&](const Script& candidate) { return !run_script<PoolType>(setup, candidate).empty(); }, attempts);
  failure.what = run_script<PoolType>(setup, failure.script);
  return failure;
}

/// Runs one episode; returns an empty value if it finds no error.
template <class PoolType = CachingAllocator>
std::optional<Failure> run_episode(const PoolSetup& setup, const Script& script) {
  if (run_script<PoolType>(setup, script).empty()) return std::nullopt;
  return shrunk<PoolType>(setup, script);
}

}  // namespace poolgrad::testing
