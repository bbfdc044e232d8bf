// snapshot_writer FOLDER: writes traces as memory snapshots, for tests in other languages.
#include <array>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/atomic_file.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/memory/simulated_memory.h"
#include "tests/allocator/trace/synthetic_trace.h"

namespace poolgrad {
namespace {

void write_synthetic_traces(const std::string& folder) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const testing_support::SyntheticShape shape{.windows = static_cast<std::size_t>(seed), .delayed = 0.3};
    Trace trace = testing_support::synthetic_trace(seed, 4000, shape);
    if (seed > 1) trace = testing_support::without_beginning(std::move(trace), 1000 * seed - 1500);
    const std::string name = folder + "synthetic" + std::to_string(seed);
    save_trace(name + ".pickle", trace, TraceFormat::pytorch_pickle);
    save_trace(name + ".json", trace, TraceFormat::pytorch_json);
    for (std::size_t part = 0; part < 10; ++part)
      save_trace(name + "_part" + std::to_string(part) + ".pickle", trace, TraceFormat::pytorch_pickle,
                 {.from = 10 + 300 * part, .to = 3000 - 100 * part, .min_size = seed == 3 ? 2048u : 0u});
  }
  save_trace(folder + "empty.pickle", {}, TraceFormat::pytorch_pickle);
}

/// Two devices, stream ids from 2^53, and texts that are not UTF-8.
void write_two_devices(const std::string& folder) {
  std::array<WindowedTrace, 2> traces;
  for (std::uint8_t device = 0; device < 2; ++device) {
    Trace trace = testing_support::synthetic_trace(4u + device, 2000, {.delayed = 0.3});
    trace.device = {DeviceType::cuda, device};
    trace.streams = {std::uint64_t{1} << 53, UINT64_MAX, 1};
    trace.scopes[1] = "caf\xc3\xa9 \xff";
    trace.locations[1].function = trace.locations[1].file = trace.settings = "\xfe\xff";
    traces[device] = cut_trace(trace);
  }
  write_file_atomically(folder + "devices.pickle", encode_pytorch_snapshot(traces, SnapshotEncoding::pickle));
  write_file_atomically(folder + "devices.json", encode_pytorch_snapshot(traces, SnapshotEncoding::json));
}

/// A pool with a small budget: blocks wait for other streams, and requests run out of memory.
void write_recorded_trace(const std::string& folder) {
  constexpr std::size_t page = 2 << 20;
  struct Live {
    void* pointer;
    std::size_t bytes;
    Stream stream;
  };
  CachingAllocator pool(std::make_unique<SimulatedMemory>(0, 64 * page, page), {.budget = 24 * page, .trace = 8000});
  const MemoryScope scope("recorded", Category::activation);
  std::mt19937_64 random(1);
  std::vector<Live> live;
  for (int i = 0; i < 4000; ++i) {
    const Stream stream{pool.device(), random() % 3};
    if (random() % 100 < 55) {
      const std::size_t bytes = random() % (random() % 10 == 0 ? 8 * page : 4096);
      const auto block = pool.try_allocate({.bytes = bytes, .stream = stream});
      if (void* const* pointer = std::get_if<void*>(&block)) live.push_back({*pointer, bytes, stream});
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      if (random() % 4 == 0) pool.use(live.back().pointer, stream);
      pool.deallocate(live.back().pointer, live.back().bytes, 64, live.back().stream);
      live.pop_back();
    }
    if (i % 500 == 0) pool.begin_step();
  }
  const Trace trace = pool.trace();
  save_trace(folder + "recorded.pickle", trace, TraceFormat::pytorch_pickle);
  save_trace(folder + "recorded.json", trace, TraceFormat::pytorch_json);
  for (const Live& block : live) pool.deallocate(block.pointer, block.bytes, 64, block.stream);
}

}  // namespace
}  // namespace poolgrad

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: snapshot_writer FOLDER\n");
    return 2;
  }
  const std::string folder = std::string(arguments[1]) + "/";
  try {
    poolgrad::write_synthetic_traces(folder);
    poolgrad::write_two_devices(folder);
    poolgrad::write_recorded_trace(folder);
  } catch (const poolgrad::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
