// What several benchmarks share.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

namespace poolgrad {

template <class F>
double seconds_of(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The upper one of an even number; of at least one value.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// main() of a program that registers its benchmarks itself.
inline int run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// Waits for lines, for a program beside that is measured in turn. Answers each with the milliseconds of one call and
/// what `also()` says.
template <class Call, class Also>
int serve_lines(const Call& call, const Also& also) {
  for (std::string line; std::getline(std::cin, line);) {
    const double seconds = seconds_of(call);
    std::printf("%.4f%s\n", 1e3 * seconds, also().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace poolgrad
