// A simulated device with a capacity and a clock: the memory behavior of a GPU without a GPU.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "allocator/base/relaxed.h"
#include "allocator/heap/handles.h"
#include "allocator/memory/device_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/latency.h"

namespace poolgrad {

// The number of device calls and their total time.

/// The calls of a GPU driver; names as in LatencyTable.
struct DriverCalls {
  struct Counter {
    std::uint64_t calls = 0;
    std::uint64_t nanoseconds = 0;
  };

  Counter reserve, unreserve, create, release, map, set_access, unmap;
  Counter event_record, event_query, stream_wait, synchronize;

  Counter total() const {
    Counter sum;
    for (const Counter& counter : {reserve, unreserve, create, release, map, set_access, unmap, event_record,
                                   event_query, stream_wait, synchronize}) {
      sum.calls += counter.calls;
      sum.nanoseconds += counter.nanoseconds;
    }
    return sum;
  }
};

struct SimulationOptions {
  /// The options for a name: "" for GPU pages, "cpu" for those of HostMemory. Throws ValueError for other names.
  static SimulationOptions like(std::string_view name);

  /// A power of two; 2 MiB as on GPUs.
  std::size_t granularity = std::size_t{2} << 20;
  /// See DeviceMemory::large_page(); at least the granularity.
  std::size_t large_page = granularity;
  /// False as on GPUs: decommit() and move() take whole handles; see DeviceMemory::divisible().
  bool divisible = false;
  /// See DeviceMemory::queues_work().
  bool queues_work = true;
  /// The time of each call on the clock; without a table, calls take no time.
  std::optional<LatencyTable> latency = std::nullopt;
  /// Back addresses with host memory, so that values can be checked.
  bool backed = false;
};

/// Addresses start at 0x7f0000000000 + 2^40 x index and, unless backed, must not be dereferenced. The clock advances by
/// advance() and by the cost of calls. Throws DeviceError for ranges that are not committed or not whole handles.
/// decommit(), which cannot throw, ends the program with that message.
class SimulatedMemory : public DeviceMemory {
 public:
  SimulatedMemory(int index, std::size_t capacity, SimulationOptions options = {});
  SimulatedMemory(int index, std::size_t capacity, std::size_t granularity)
      : SimulatedMemory(index, capacity, SimulationOptions{.granularity = granularity, .large_page = granularity}) {}

  Device device() const override { return device_; }
  std::size_t granularity() const override { return options_.granularity; }
  std::size_t large_page() const override { return options_.large_page; }
  MemoryInfo info() const override;
  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  bool divisible() const override { return options_.divisible; }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;
  bool queues_work() const override { return options_.queues_work; }
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;
  void hold_still() override { mutex_.lock(); }
  void go_on() noexcept override { mutex_.unlock(); }

  /// Sets the capacity in bytes; keeps committed memory.
  void set_capacity(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    capacity_ = bytes;
  }
  /// The virtual clock, in nanoseconds.
  std::uint64_t now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  /// Advances the clock by `nanoseconds`.
  void advance(std::uint64_t nanoseconds) {
    const std::lock_guard lock(mutex_);
    now_ += nanoseconds;
  }
  /// Delay from record_event() until in-flight work is done (0 by default).
  void set_event_delay(std::uint64_t nanoseconds) {
    const std::lock_guard lock(mutex_);
    event_delay_ = nanoseconds;
  }
  /// Number of times a stream waited for an unfinished event.
  std::uint64_t waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }
  /// Calls so far and their times. synchronize() includes the wait.
  DriverCalls calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  // Counts a call on `bytes` and advances the clock. Requires the mutex.
  void charge(DriverCalls::Counter DriverCalls::*counter, LatencyTable::Cost LatencyTable::*cost,
              std::size_t bytes = 0);
  // Splits a handle at the ends of the range; for divisible memory only.
  void divide(std::uintptr_t address, std::size_t bytes);

  const Device device_;
  SimulationOptions options_;
  const std::unique_ptr<HostMemory> bytes_;  // null unless backed
  mutable std::mutex mutex_;
  Relaxed<std::size_t> capacity_;
  Relaxed<std::size_t> committed_ = 0;
  std::map<std::uintptr_t, std::size_t> addresses_;  // unreserved address ranges: start -> bytes
  std::uint64_t now_ = 0;
  std::uint64_t event_delay_ = 0;
  std::uint64_t waits_ = 0;
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> finish_times_;
  MappedHandles handles_;
  DriverCalls calls_;
};

// The virtual clocks of the process-wide simulated devices, see allocator_for().

/// Advances the clock of a simulated device by `nanoseconds` of work. Throws DeviceError for other devices.
void advance_clock(Device device, std::uint64_t nanoseconds);

/// Nanoseconds on the clock of a simulated device. Throws DeviceError for other devices.
std::uint64_t device_clock(Device device);

}  // namespace poolgrad
