// What the modelled policies ask of a device: memory within a capacity, events, and the time that all of it takes on a
// virtual clock. Addresses are made up, never reused, and 2 MiB aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/memory/latency.h"

namespace poolgrad {

struct DeviceCounters {
  std::uint64_t allocations = 0;       // cudaMalloc, or handles created and mapped
  std::uint64_t frees = 0;             // cudaFree, or handles unmapped and released
  std::uint64_t events = 0;            // recorded
  std::uint64_t waits = 0;             // a stream made to wait for another
  std::uint64_t synchronizations = 0;  // the caller waited
  double nanoseconds = 0;              // in all these calls
};

class ModelDevice {
 public:
  static constexpr std::size_t page = std::size_t{2} << 20;

  ModelDevice(std::size_t capacity, const LatencyTable& latency, std::uint16_t streams);

  /// cudaMalloc: 0 if it does not fit. Takes whole pages of 2 MiB of the capacity.
  std::uintptr_t allocate(std::size_t bytes);
  /// cudaFree, with the implicit synchronisation of the device.
  void free(std::uintptr_t address, std::size_t bytes);
  /// cudaMalloc and cudaFree of a part of a page that the driver already holds: the call alone.
  void allocate_in_page(std::size_t bytes);
  void free_in_page(std::size_t bytes);
  /// Addresses without memory behind them.
  std::uintptr_t reserve(std::size_t bytes);
  /// Creates `handles` physical handles of `bytes` in all and maps them; false if they do not fit.
  bool map(std::size_t bytes, std::size_t handles);
  void unmap(std::size_t bytes, std::size_t handles);
  /// Maps memory that is already there once more (or elsewhere): costs time, takes nothing of the capacity.
  void remap(std::size_t handles);

  /// Marks the work of a stream so far, which takes `work_delay` from now to finish.
  std::uint64_t record(std::uint16_t stream);
  bool finished(std::uint64_t event);
  /// Later work of `stream` waits for the event; the caller does not.
  void wait(std::uint16_t stream, std::uint64_t event);
  void synchronize(std::uint64_t event);
  void synchronize_stream(std::uint16_t stream);
  void synchronize_all();

  void advance(double nanoseconds) { now_ += nanoseconds; }
  double now() const { return now_; }
  std::size_t capacity() const { return capacity_; }
  /// Bytes that the device has given out.
  std::size_t reserved() const { return reserved_; }
  const DeviceCounters& counters() const { return counters_; }

  /// Nanoseconds from the moment an operation is queued until the device has done it.
  static constexpr double work_delay = 20000;

 private:
  void spend(double nanoseconds) {
    now_ += nanoseconds;
    counters_.nanoseconds += nanoseconds;
  }

  std::size_t capacity_;
  LatencyTable latency_;
  std::vector<double> busy_until_;  // by stream
  std::vector<double> finish_;      // by event - 1
  std::uintptr_t next_address_;
  std::size_t reserved_ = 0;
  double now_ = 0;
  DeviceCounters counters_;
};

}  // namespace poolgrad
