// Nanoseconds per event of each policy (goal: at most 100), on a generated transformer's training steps and on a
// mixture of experts. `items_per_second` is events per second; the policy is made anew each time and that is not timed.
#include <benchmark/benchmark.h>

#include "allocator/replay/replay.h"
#include "allocator/replay/zoo.h"

namespace poolgrad {
namespace {

void replay_events(benchmark::State& state, const PolicyEntry& policy, const Workload& workload) {
  std::uint64_t events = 0;
  double seconds = 0;
  for (auto _ : state) {
    const ReplayResult result = replay(workload, policy);
    events += result.operations;
    seconds += result.seconds;
    state.SetIterationTime(result.seconds);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(events));
  state.counters["ns_per_event"] = seconds * 1e9 / static_cast<double>(events);
}

const int registered = [] {
  for (const char* name : {"transformer", "mixture-of-experts"}) {
    static std::vector<std::unique_ptr<Workload>> workloads;
    const Workload& workload = *workloads.emplace_back(std::make_unique<Workload>(zoo_workload(name)));
    for (const PolicyEntry& policy : policies()) {
      benchmark::RegisterBenchmark(("replay/" + std::string(policy.name) + "/" + name).c_str(),
                                   [&](benchmark::State& state) { replay_events(state, policy, workload); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
