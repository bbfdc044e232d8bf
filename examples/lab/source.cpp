#include "examples/lab/source.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/replay/zoo/zoo.h"
#include "allocator/trace/trace_file.h"

namespace poolgrad::examples {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view zoo_prefix = "zoo:";

/// One pool, and where it put each block.
class Placement {
 public:
  Placement(const Workload& workload, std::size_t capacity)
      : workload_(workload), pool_(make_memory(workload, capacity), {}), places_(workload.blocks) {}

  Trace run() {
    pool_.start_trace(4 * workload_.operations.size() + 4096);  // rungs and commits come on top
    try {
      for (const Operation& operation : workload_.operations) {
        memory().advance(operation.think);
        perform(operation);
      }
    } catch (const OutOfMemoryError&) {  // the trace says so
    }
    Trace trace = pool_.trace();
    trace.locations.resize(1);  // the call sites are this file's
    for (TraceEvent& event : trace.events) event.location = 0;
    return trace;
  }

 private:
  struct Place {
    void* pointer = nullptr;
    std::size_t bytes = 0;
  };

  static std::unique_ptr<SimulatedMemory> make_memory(const Workload& workload, std::size_t capacity) {
    constexpr std::size_t least = std::size_t{1} << 30;
    return std::make_unique<SimulatedMemory>(0, capacity ? capacity : std::max(least, 8 * workload.lower_bound()));
  }

  SimulatedMemory& memory() { return static_cast<SimulatedMemory&>(pool_.memory()); }
  Stream stream(std::uint16_t index) const { return {pool_.device(), index}; }

  void perform(const Operation& operation) {
    const Stream on = stream(operation.stream);
    switch (operation.kind) {
      case OperationKind::allocate: {
        const MemoryScope scope(operation.category);
        places_.at(operation.block) = {pool_.allocate(operation.bytes, 64, on), operation.bytes};
        break;
      }
      case OperationKind::free: {
        Place& place = places_.at(operation.block);
        pool_.deallocate(place.pointer, place.bytes, 64, on);
        place.pointer = nullptr;
        break;
      }
      case OperationKind::use: pool_.use(places_.at(operation.block).pointer, on); break;
      case OperationKind::order: pool_.order(on, stream(static_cast<std::uint16_t>(operation.block))); break;
      case OperationKind::step: pool_.begin_step(); break;
    }
  }

  const Workload& workload_;
  CachingAllocator pool_;
  std::vector<Place> places_;
};

}  // namespace

std::string source_name(const std::string& source) {
  return source.starts_with(zoo_prefix) ? source.substr(zoo_prefix.size()) : fs::path(source).stem().string();
}

Workload read_workload(const std::string& source) {
  if (source.starts_with(zoo_prefix)) return zoo_workload(source_name(source));
  Workload workload = workload_of(load_trace(source), source_name(source));
  workload.description = source;
  return workload;
}

Trace read_trace(const std::string& source) {
  if (source.starts_with(zoo_prefix)) return place(zoo_workload(source_name(source)));
  return load_trace(source);
}

std::vector<std::string> recordings() {
  const char* set = std::getenv("POOLGRAD_RECORDINGS");
  const fs::path folder = set ? set : POOLGRAD_RECORDINGS;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".pgt") paths.push_back(entry->path().string());
  std::ranges::sort(paths);
  return paths;
}

Trace place(const Workload& workload, std::size_t capacity) { return Placement(workload, capacity).run(); }

}  // namespace poolgrad::examples
