// The pools that are fuzzed: a device, its pages, and a configuration.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "allocator/memory/race_detector.h"
#include "tests/allocator/fuzz/watching_memory.h"
#include "tests/allocator/memory/test_memories.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {

/// Memory that is committed in handles, as on a GPU, over any device.
class HandleMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;
  bool divisible() const override { return false; }
};

struct PoolSetup {
  std::string device = "host";  // "host", "sim", "handles" (host memory in handles) or "other" (from make_other)
  std::size_t granularity = page;
  std::size_t capacity = 512 * page;  // of the device
  AllocatorConfig config = {};
  bool delayed = false;  // events finish when the test says so
  std::function<std::unique_ptr<DeviceMemory>(std::size_t capacity)> make_other = nullptr;  // bytes are not checked
  bool detect_races = false;  // streams are ordered before they share a block, as in a correct program
};

inline std::string to_string(const PoolSetup& setup) {
  return setup.device + " in pages of " + format_bytes(setup.granularity) + ", capacity " +
         format_bytes(setup.capacity) + (setup.delayed ? ", delayed events" : "") +
         (setup.detect_races ? ", race detector" : "") + ", " + setup.config.text();
}

/// The adaptors before a device, innermost last. They live as long as the pool that owns `memory`.
struct WatchedDevice {
  std::unique_ptr<DeviceMemory> memory;
  FailingMemory* failing = nullptr;
  WatchingMemory* watch = nullptr;
  DelayedMemory* delayed = nullptr;  // nullptr if events are not delayed
};

inline WatchedDevice make_device(const PoolSetup& setup) {
  WatchedDevice made;
  made.memory = setup.device == "other"
                    ? setup.make_other(setup.capacity)
                    : make_memory(setup.device == "sim" ? "sim" : "host", setup.capacity, setup.granularity);
  if (setup.device == "handles") made.memory = std::make_unique<HandleMemory>(std::move(made.memory));
  if (setup.detect_races) made.memory = std::make_unique<RaceDetector>(std::move(made.memory));
  if (setup.delayed) {
    auto delayed = std::make_unique<DelayedMemory>(std::move(made.memory));
    made.delayed = delayed.get();
    made.memory = std::move(delayed);
  }
  auto watch = std::make_unique<WatchingMemory>(std::move(made.memory));
  made.watch = watch.get();
  auto failing = std::make_unique<FailingMemory>(std::move(watch));
  made.failing = failing.get();
  made.memory = std::move(failing);
  return made;
}

}  // namespace poolgrad::testing
