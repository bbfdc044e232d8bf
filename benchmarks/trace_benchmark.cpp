// Snapshots and recording of a trace. Goal "snapshot": 10^6 events are written in at most 1 s to a file of at most 100
// MB that the memory viewer opens. Recording an event takes a few nanoseconds. Counters: bytes of the file, bytes an
// event.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "allocator/lab/formats/trace_file.h"
#include "allocator/trace/trace_ring.h"
#include "tests/allocator/trace/synthetic_trace.h"

namespace poolgrad {
namespace {

constexpr std::size_t event_count = 1'000'000;

const Trace& million_events() {
  static const Trace trace =
      testing_support::synthetic_trace(1, event_count, {.windows = 2, .pages = 512, .live = 20'000});
  return trace;
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "poolgrad_bench_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file() const { return (path_ / "trace").string(); }

 private:
  std::filesystem::path path_;
};

void report(benchmark::State& state, const std::string& path) {
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  state.counters["bytes"] = bytes;
  state.counters["bytes_per_event"] = bytes / static_cast<double>(event_count);
}

// Writes the trace to a file and syncs it.
void BM_Snapshot(benchmark::State& state, TraceFormat format) {
  const Trace& trace = million_events();
  const Folder folder;
  for (auto _ : state) save_trace(folder.file(), trace, format);
  report(state, folder.file());
}
BENCHMARK_CAPTURE(BM_Snapshot, pickle, TraceFormat::pytorch_pickle)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Snapshot, json, TraceFormat::pytorch_json)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Snapshot, pgt, TraceFormat::pgt)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Snapshot, csv, TraceFormat::csv)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Snapshot, chrome, TraceFormat::chrome)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_Load(benchmark::State& state, TraceFormat format) {
  const Folder folder;
  save_trace(folder.file(), million_events(), format);
  for (auto _ : state) benchmark::DoNotOptimize(load_trace(folder.file()).events.data());
  report(state, folder.file());
}
BENCHMARK_CAPTURE(BM_Load, pickle, TraceFormat::pytorch_pickle)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Load, json, TraceFormat::pytorch_json)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Load, pgt, TraceFormat::pgt)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(BM_Load, csv, TraceFormat::csv)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_Ticks(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(trace_ticks());
}
BENCHMARK(BM_Ticks);

// Records one event with its timestamp in a ring of that many events.
void BM_Record(benchmark::State& state) {
  TraceRing ring(static_cast<std::size_t>(state.range(0)));
  TraceEvent event;
  for (std::int64_t i = 0; i < state.range(0); ++i) ring.record(event);  // the ring's pages are resident
  for (auto _ : state) {
    event.time = trace_ticks();
    ++event.allocation;
    ring.record(event);
  }
  benchmark::DoNotOptimize(ring.events().data());
}
BENCHMARK(BM_Record)->Arg(1 << 10)->Arg(1'000'000);

}  // namespace
}  // namespace poolgrad

BENCHMARK_MAIN();
