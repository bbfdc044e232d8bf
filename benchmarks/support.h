// Helpers of several benchmarks.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "benchmarks/small_sizes.h"
#include "tensor/tensor.h"

namespace poolgrad {

template <class F>
double seconds_of(const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Removes --device=cuda:0 from a command line and returns the device to measure, by default the cpu. If the device is
/// unavailable, ends the program with the reason.
inline Device take_device(int& argc, char** argv) {
  constexpr std::string_view option = "--device=";
  Device device;
  try {
    char** const end = std::remove_if(argv, argv + argc, [&](const char* argument) {
      const std::string_view text(argument);
      if (!text.starts_with(option)) return false;
      device = Device::parse(text.substr(option.size()));
      return true;
    });
    argc = static_cast<int>(end - argv);
    allocator_for(device);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(1);
  }
  return device;
}

/// Returns the number of calls to queue at a time: several if the device works asynchronously.
inline int calls_at_once(Device device) { return device.is_cpu() ? 1 : 16; }

/// Returns how many sets of operands, of so many bytes each, to use in turn. On a GPU there are enough that no set is
/// still in the cache.
inline int sets_of_operands(Device device, std::int64_t bytes) {
  constexpr std::int64_t uncached = std::int64_t{512} << 20;  // several times the L2 cache of any GPU
  return device.is_cpu() || small_sizes() ? 1 : static_cast<int>(std::max<std::int64_t>(1, (uncached - 1) / bytes + 1));
}

/// Times calls after an untimed warm-up; returns the total seconds.
template <class Call>
double time_calls(benchmark::State& state, Device device, const Call& call) {
  const int batch = calls_at_once(device);
  call();
  synchronize(device);
  double seconds = 0;
  while (state.KeepRunningBatch(batch))
    seconds += seconds_of([&] {
      for (int i = 0; i < batch; ++i) call();
      synchronize(device);
    });
  return seconds;
}

/// Returns the median, the upper one of an even number. Needs at least one value.
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

/// Waits for lines from a program that measures in turn. Answers each with the milliseconds of one call and the result
/// of `also()`.
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
