// A device with a capacity and a clock: the memory behaviour of a GPU without owning one.
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

// How often a device was called, and how long that took.

/// The calls that a GPU's driver knows; names as in LatencyTable.
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
  /// Those of the memory that has this name: "" the pages of a GPU, "cpu" what HostMemory says of itself. Throws
  /// ValueError for another.
  static SimulationOptions like(std::string_view name);

  /// Pages of 2 MiB are what GPUs have; a power of two.
  std::size_t granularity = std::size_t{2} << 20;
  /// See DeviceMemory::large_page(); at least the granularity.
  std::size_t large_page = granularity;
  /// GPUs take whole handles only; see DeviceMemory::divisible().
  bool divisible = false;
  /// See DeviceMemory::queues_work().
  bool queues_work = true;
  /// What each call adds to the clock; without a table calls take no time.
  std::optional<LatencyTable> latency = std::nullopt;
  /// Memory is real, of the host, so that values can be checked. Addresses are the host's then.
  bool backed = false;
};

/// Addresses start at 0x7f0000000000 + 2^40 x index and, unless backed, are never to be dereferenced. Time passes when
/// told to, and by what calls cost. Throws DeviceError where a range is not committed or not of whole handles; in
/// decommit(), which cannot throw, that ends the program with the sentence.
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

  /// A new capacity in bytes; memory that is already committed stays.
  void set_capacity(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    capacity_ = bytes;
  }
  /// The virtual clock, in nanoseconds.
  std::uint64_t now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  /// `nanoseconds` pass.
  void advance(std::uint64_t nanoseconds) {
    const std::lock_guard lock(mutex_);
    now_ += nanoseconds;
  }
  /// Work in flight when an event is recorded takes this long from then on (0 by default).
  void set_event_delay(std::uint64_t nanoseconds) {
    const std::lock_guard lock(mutex_);
    event_delay_ = nanoseconds;
  }
  /// How often a stream was made to wait for an event that was not finished.
  std::uint64_t waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }
  /// Calls so far and what they cost. Times of synchronize() include the wait.
  DriverCalls calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  // Counts a call about `bytes` and lets its time pass. Called with the mutex held.
  void charge(DriverCalls::Counter DriverCalls::*counter, LatencyTable::Cost LatencyTable::*cost,
              std::size_t bytes = 0);
  // Where memory is divisible, handles end where the range does.
  void divide(std::uintptr_t address, std::size_t bytes);

  const Device device_;
  SimulationOptions options_;
  const std::unique_ptr<HostMemory> bytes_;  // where backed
  mutable std::mutex mutex_;
  Relaxed<std::size_t> capacity_;
  Relaxed<std::size_t> committed_ = 0;
  std::map<std::uintptr_t, std::size_t> addresses_;  // that are not reserved: where a range starts, and its bytes
  std::uint64_t now_ = 0;
  std::uint64_t event_delay_ = 0;
  std::uint64_t waits_ = 0;
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> finish_times_;
  MappedHandles handles_;
  DriverCalls calls_;
};

// The virtual clocks of the process-wide simulated devices, see allocator_for().

/// `nanoseconds` of work pass on a simulated device. Throws DeviceError for any other device.
void advance_clock(Device device, std::uint64_t nanoseconds);

/// Nanoseconds that have passed on a simulated device since it was made. Throws DeviceError for any other device.
std::uint64_t device_clock(Device device);

}  // namespace poolgrad
