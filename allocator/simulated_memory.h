// A device with a capacity and a clock, but no bytes: the memory behaviour of a GPU without owning one.
#pragma once

#include <mutex>
#include <unordered_map>

#include "allocator/device_memory.h"

namespace poolgrad {

/// Addresses start at 0x7f0000000000 + 2^40 x index and are never to be dereferenced. Time passes only when told to.
class SimulatedMemory : public DeviceMemory {
 public:
  /// Pages of 2 MiB are what GPUs have; `granularity` is a power of two.
  SimulatedMemory(int index, std::size_t capacity, std::size_t granularity = std::size_t{2} << 20);

  Device device() const override { return device_; }
  std::size_t granularity() const override { return granularity_; }
  MemoryInfo info() const override;
  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  void fill(void*, std::size_t, unsigned char, Stream) override {}
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;

  /// A new capacity in bytes; memory that is already committed stays.
  void set_capacity(std::size_t bytes);
  /// The virtual clock, in nanoseconds.
  std::uint64_t now() const;
  /// `nanoseconds` pass.
  void advance(std::uint64_t nanoseconds);
  /// Work in flight when an event is recorded takes this long from then on (0 by default).
  void set_event_delay(std::uint64_t nanoseconds);
  /// How often a stream was made to wait for an event that was not finished.
  std::uint64_t waits() const;

 private:
  Device device_;
  std::size_t granularity_;
  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::size_t committed_ = 0;
  std::uintptr_t next_address_;
  std::uintptr_t end_address_;
  std::uint64_t now_ = 0;
  std::uint64_t event_delay_ = 0;
  std::uint64_t waits_ = 0;
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> finish_times_;
};

}  // namespace poolgrad
