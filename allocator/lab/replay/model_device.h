// The device of the modeled policies: memory within a capacity, events, and the time of all calls on a virtual clock.
// Addresses are virtual, never reused, and 2 MiB aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/memory/latency.h"

namespace poolgrad {

struct DeviceCounters {
  std::uint64_t allocations = 0;       // cudaMalloc, or handles created and mapped
  std::uint64_t frees = 0;             // cudaFree, or handles unmapped and released
  std::uint64_t events = 0;            // recorded
  std::uint64_t waits = 0;             // of a stream for another
  std::uint64_t synchronizations = 0;  // by the caller
  double nanoseconds = 0;              // total time of these calls
};

class ModelDevice {
 public:
  static constexpr std::size_t page = std::size_t{2} << 20;

  ModelDevice(std::size_t capacity, const LatencyTable& latency, std::uint16_t streams)
      : capacity_(capacity), latency_(latency), busy_until_(streams != 0 ? streams : 1u) {}

  /// cudaMalloc: 0 if it does not fit. Takes whole pages of 2 MiB of the capacity.
  std::uintptr_t allocate(std::size_t bytes) {
    spend(latency_.malloc.of(bytes));
    if (!take(bytes)) return 0;
    ++counters_.allocations;
    return reserve(bytes);
  }
  /// cudaFree, which synchronizes the device.
  void free(std::uintptr_t /*address*/, std::size_t bytes) {
    free_in_page(bytes);
    reserved_ -= pages(bytes) * page;
  }
  /// cudaMalloc and cudaFree inside a page that the driver already holds: costs only the call.
  void allocate_in_page(std::size_t bytes) {
    spend(latency_.malloc.of(bytes));
    ++counters_.allocations;
  }
  void free_in_page(std::size_t bytes) {
    synchronize_all();
    spend(latency_.free.of(bytes));
    ++counters_.frees;
  }
  /// Reserves addresses without memory.
  std::uintptr_t reserve(std::size_t bytes) {
    return std::exchange(next_address_, next_address_ + (bytes != 0 ? pages(bytes) : 1) * page);
  }
  /// Creates `handles` physical handles of `bytes` in all and maps them; false if they do not fit.
  bool map(std::size_t bytes, std::size_t handles) {
    spend(each(latency_.create, bytes, handles));
    if (!take(bytes)) return false;
    spend(each(latency_.map, bytes, handles) + each(latency_.set_access, bytes, handles));
    counters_.allocations += handles;
    return true;
  }
  void unmap(std::size_t bytes, std::size_t handles) {
    spend(each(latency_.unmap, bytes, handles) + each(latency_.release, bytes, handles));
    counters_.frees += handles;
    reserved_ -= pages(bytes) * page;
  }
  /// Maps existing handles again: costs time, but no capacity.
  void remap(std::size_t handles) {
    spend(static_cast<double>(handles) * (latency_.map.call + latency_.set_access.call));
  }

  /// Records an event; the stream's work so far finishes in `work_delay`.
  std::uint64_t record(std::uint16_t stream) {
    spend(latency_.event_record.call);
    ++counters_.events;
    finish_.push_back(busy_until_[stream] = later(busy_until_[stream], now_ + work_delay));
    return finish_.size();
  }
  bool finished(std::uint64_t event) {
    spend(latency_.event_query.call);
    return finish_[event - 1] <= now_;
  }
  /// Makes later work of `stream` wait for the event, without blocking the caller.
  void wait(std::uint16_t stream, std::uint64_t event) {
    spend(latency_.stream_wait.call);
    ++counters_.waits;
    busy_until_[stream] = later(busy_until_[stream], finish_[event - 1]);
  }
  void synchronize(std::uint64_t event) { synchronize_until(finish_[event - 1]); }
  void synchronize_stream(std::uint16_t stream) {
    // All work of the stream so far finishes within `work_delay`.
    busy_until_[stream] = later(busy_until_[stream], now_ + work_delay);
    spend(latency_.synchronize.call + busy_until_[stream] - now_);
    ++counters_.synchronizations;
  }
  void synchronize_all() {
    double latest = busy_until_.front();
    for (const double time : busy_until_) latest = later(latest, time);
    synchronize_until(latest);
  }

  void advance(double nanoseconds) { now_ += nanoseconds; }
  double now() const { return now_; }
  std::size_t capacity() const { return capacity_; }
  /// Bytes allocated on the device.
  std::size_t reserved() const { return reserved_; }
  const DeviceCounters& counters() const { return counters_; }

  /// Nanoseconds from queueing an operation to its completion.
  static constexpr double work_delay = 20000;

 private:
  void spend(double nanoseconds) {
    now_ += nanoseconds;
    counters_.nanoseconds += nanoseconds;
  }

  static double later(double a, double b) { return a < b ? b : a; }
  void synchronize_until(double time) {
    spend(latency_.synchronize.call + later(0.0, time - now_));
    ++counters_.synchronizations;
  }
  static std::size_t pages(std::size_t bytes) { return (bytes + page - 1) / page; }
  // Takes whole pages for `bytes` from the capacity; false if it is too small.
  bool take(std::size_t bytes) {
    if (pages(bytes) > (capacity_ - reserved_) / page) return false;
    reserved_ += pages(bytes) * page;
    return true;
  }
  static double each(const LatencyTable::Cost& cost, std::size_t bytes, std::size_t handles) {
    return cost.of(bytes) + cost.call * (static_cast<double>(handles) - 1);
  }

  std::size_t capacity_;
  LatencyTable latency_;
  std::vector<double> busy_until_;  // by stream
  std::vector<double> finish_;      // by event - 1
  std::uintptr_t next_address_ = 0x7f0000000000;
  std::size_t reserved_ = 0;
  double now_ = 0;
  DeviceCounters counters_;
};

}  // namespace poolgrad
