#include "allocator/lab/advice.h"

#include <algorithm>

#include "allocator/error.h"
#include "allocator/lab/replay/replay.h"
#include "allocator/report/laboratory_hook.h"

namespace poolgrad {

namespace {

class Trial {
 public:
  Trial(Workload workload, std::size_t capacity) : workload_(std::move(workload)), capacity_(capacity) {}

  bool passes(const AllocatorConfig& config) const {
    const PolicyEntry entry{"trial", "", true,
                            [&](const PolicyContext& context) { return make_poolgrad(context, config); }};
    return !replay(workload_, entry, {.capacity = capacity_}).out_of_memory;
  }

  /// The smallest sufficient budget in whole pages; 0 if the device is too small.
  std::size_t budget(AllocatorConfig config) const {
    constexpr std::size_t page = ModelDevice::page;
    const auto passes_with = [&](std::size_t pages) {
      config.budget = pages * page;
      return passes(config);
    };
    std::size_t enough = capacity_ / page;
    std::size_t fails = config.budget / page;
    if (config.budget == 0 || enough <= fails || !passes_with(enough)) return 0;
    while (enough - fails > 1) {
      const std::size_t middle = fails + (enough - fails) / 2;
      (passes_with(middle) ? enough : fails) = middle;
    }
    return enough * page;
  }

 private:
  Workload workload_;
  std::size_t capacity_;
};

/// The trace without earlier failures, followed by the failed request.
Workload workload_with(Trace trace, const AllocationRequest& request) {
  std::erase_if(trace.events, [](const TraceEvent& event) { return event.kind == TraceKind::out_of_memory; });
  const auto stream = std::ranges::find(trace.streams, request.stream.id) - trace.streams.begin();
  if (stream == std::ssize(trace.streams)) trace.streams.push_back(request.stream.id);
  trace.events.push_back({.size = request.bytes,
                          .stream = static_cast<std::uint32_t>(stream),
                          .kind = TraceKind::out_of_memory,
                          .category = request.tag.category,
                          .flags = alignment_flags(request.alignment)});
  return workload_of(trace, "advice", true);
}

}  // namespace

std::vector<std::string> checked_advice(const Trace& trace, const AllocatorConfig& config, std::size_t capacity,
                                        const AllocationRequest& request) {
  AllocatorConfig present = config;
  present.trace = 0;
  present.poison = false;
  std::vector<std::string> advice;
  try {
    const Trial trial(workload_with(trace, request), capacity);
    if (trial.passes(present)) return advice;
    const auto with = [&](auto change, const char* setting) {
      AllocatorConfig other = present;
      change(other);
      if (other.text() != present.text() && trial.passes(other)) {
        advice.push_back(std::string(setting) + " would have served it");
      }
    };
    with([](AllocatorConfig& c) { c.stitch = true; }, "stitch:on");
    with([](AllocatorConfig& c) { c.deterministic = false; }, "deterministic:off");
    with([](AllocatorConfig& c) { c.magazines = false; }, "magazines:off");
    with([](AllocatorConfig& c) { c.alignment = std::min<std::size_t>(c.alignment, 64); }, "alignment:64");
    with([](AllocatorConfig& c) { c.mode = AllocatorMode::standard; }, "mode:default");
    with([](AllocatorConfig& c) { c.mode = AllocatorMode::planned; }, "mode:planned");
    if (const std::size_t budget = trial.budget(present); budget != 0) {
      advice.push_back("budget:" + std::to_string(budget >> 20) + "MiB would have served it");
    }
  } catch (const ValueError&) {
    // Without a replay there is no advice.
  }
  return advice;
}

}  // namespace poolgrad

// The linker keeps it for its name (CMakeLists.txt), so that every program with this library registers the hook.
extern "C" {
extern const bool poolgrad_laboratory_registers;
const bool poolgrad_laboratory_registers = [] {
  poolgrad::laboratory_hook = poolgrad::checked_advice;
  return true;
}();
}
