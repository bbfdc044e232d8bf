#include "allocator/simulated_memory.h"

#include <algorithm>

#include "allocator/error.h"

namespace poolgrad {

namespace {

constexpr std::uintptr_t first_address = 0x7f0000000000;
constexpr std::uintptr_t device_span = std::uintptr_t{1} << 40;

Device simulated_device(int index) {
  if (index < 0 || index > 255) {
    throw DeviceError("[allocator] simulated devices are sim:0 to sim:255, got index " + std::to_string(index));
  }
  return Device{DeviceType::sim, static_cast<std::uint8_t>(index)};
}

}  // namespace

SimulatedMemory::SimulatedMemory(int index, std::size_t capacity, std::size_t granularity)
    : device_(simulated_device(index)),
      granularity_(granularity),
      capacity_(capacity),
      next_address_(first_address + device_.index * device_span),
      end_address_(next_address_ + device_span) {}

MemoryInfo SimulatedMemory::info() const {
  std::lock_guard lock(mutex_);
  return {.free = capacity_ - std::min(committed_, capacity_), .total = capacity_};
}

void* SimulatedMemory::reserve(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > end_address_ - next_address_) return nullptr;
  const std::uintptr_t address = next_address_;
  next_address_ += bytes;
  return reinterpret_cast<void*>(address);
}

void SimulatedMemory::unreserve(void* address, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  // The last range can be reserved again, so a pool that is made anew sees the same addresses.
  if (reinterpret_cast<std::uintptr_t>(address) + bytes == next_address_) next_address_ -= bytes;
}

bool SimulatedMemory::commit(void*, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (committed_ > capacity_ || bytes > capacity_ - committed_) return false;
  committed_ += bytes;
  return true;
}

void SimulatedMemory::decommit(void*, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  committed_ -= bytes;
}

EventId SimulatedMemory::record_event(Stream) {
  std::lock_guard lock(mutex_);
  finish_times_[++last_event_] = now_ + event_delay_;
  return last_event_;
}

bool SimulatedMemory::event_finished(EventId event) {
  std::lock_guard lock(mutex_);
  const auto entry = finish_times_.find(event);
  if (entry == finish_times_.end()) return true;
  if (entry->second > now_) return false;
  finish_times_.erase(entry);
  return true;
}

void SimulatedMemory::stream_wait(Stream, EventId event) {
  std::lock_guard lock(mutex_);
  const auto entry = finish_times_.find(event);
  if (entry != finish_times_.end() && entry->second > now_) ++waits_;
}

void SimulatedMemory::synchronize(EventId event) {
  std::lock_guard lock(mutex_);
  const auto entry = finish_times_.find(event);
  if (entry == finish_times_.end()) return;
  now_ = std::max(now_, entry->second);
  finish_times_.erase(entry);
}

void SimulatedMemory::discard_event(EventId event) noexcept {
  std::lock_guard lock(mutex_);
  finish_times_.erase(event);
}

void SimulatedMemory::set_capacity(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

std::uint64_t SimulatedMemory::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void SimulatedMemory::advance(std::uint64_t nanoseconds) {
  std::lock_guard lock(mutex_);
  now_ += nanoseconds;
}

void SimulatedMemory::set_event_delay(std::uint64_t nanoseconds) {
  std::lock_guard lock(mutex_);
  event_delay_ = nanoseconds;
}

std::uint64_t SimulatedMemory::waits() const {
  std::lock_guard lock(mutex_);
  return waits_;
}

}  // namespace poolgrad
