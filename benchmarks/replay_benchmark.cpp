// Nanoseconds per operation of a replay, over all workloads (goal: at most 150 for the real pool, 100 for the models).
// Each iteration replays every workload once, and includes construction and destruction of the policies. `roomy` has no
// limit. `tight` has 1.02 x the lower bound, like most probes of a search for the smallest capacity, and ends when
// memory runs out. `median` and `worst` are over the workloads, each the median of its replays.
#include "allocator/lab/replay/replay.h"
#include "allocator/lab/zoo/zoo.h"
#include "benchmarks/support.h"

namespace poolgrad {
namespace {

const std::vector<Workload>& zoo() {
  static const std::vector<Workload> workloads = [] {
    std::vector<Workload> all;
    for (const ZooEntry& entry : trace_zoo()) all.push_back(zoo_workload(entry.name));
    return all;
  }();
  return workloads;
}

void replay_zoo(benchmark::State& state, const PolicyEntry& policy, double capacity) {
  std::vector<std::vector<double>> ns(zoo().size());
  std::uint64_t operations = 0;
  double seconds = 0;
  for (auto _ : state) {
    double iteration = 0;
    for (std::size_t i = 0; i < zoo().size(); ++i) {
      ReplayOptions options;
      if (capacity != 0) {
        options.capacity = static_cast<std::size_t>(static_cast<double>(zoo()[i].peak_requested()) * capacity);
      }
      ReplayResult result;
      const double passed = seconds_of([&] { result = replay(zoo()[i], policy, options); });
      operations += result.operations;
      iteration += passed;
      ns[i].push_back(passed * 1e9 / static_cast<double>(result.operations));
    }
    state.SetIterationTime(iteration);
    seconds += iteration;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(operations));
  std::vector<double> medians;
  for (std::size_t i = 0; i < ns.size(); ++i) {
    medians.push_back(median(ns[i]));
    if (policy.name == "poolgrad") state.counters[zoo()[i].name] = medians.back();
  }
  state.counters["ns"] = seconds * 1e9 / static_cast<double>(operations);
  state.counters["median"] = median(medians);
  state.counters["worst"] = *std::ranges::max_element(medians);
}

const int registered = [] {
  for (const PolicyEntry& policy : policies()) {
    for (const auto& [name, capacity] : {std::pair{"roomy", 0.0}, std::pair{"tight", 1.02}}) {
      benchmark::RegisterBenchmark(
          ("replay/" + std::string(policy.name) + "/" + name).c_str(),
          [&policy, capacity](benchmark::State& state) { replay_zoo(state, policy, capacity); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
