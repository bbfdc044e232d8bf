#include "allocator/memory/simulated_memory.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/base/rounding.h"
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

SimulationOptions SimulationOptions::like(std::string_view name) {
  if (name.empty()) return {};
  if (name != "cpu") throw ValueError("[simulation] unknown device to simulate: " + printable(name) + "; known: cpu");
  const HostMemory host(1);
  return {.granularity = host.granularity(),
          .large_page = host.large_page(),
          .divisible = host.divisible(),
          .queues_work = host.queues_work()};
}

SimulatedMemory::SimulatedMemory(int index, std::size_t capacity, SimulationOptions options)
    : device_(simulated_device(index)),
      options_(std::move(options)),
      // Without a limit of its own: the capacity is checked here.
      bytes_(options_.backed ? std::make_unique<HostMemory>(SIZE_MAX, options_.granularity) : nullptr),
      capacity_(capacity),
      addresses_{{first_address + device_.index * device_span, device_span}} {}

void SimulatedMemory::charge(DriverCalls::Counter DriverCalls::*counter, LatencyTable::Cost LatencyTable::*cost,
                             std::size_t bytes) {
  const double time = options_.latency ? (*options_.latency.*cost).of(bytes) : 0;
  const auto nanoseconds = static_cast<std::uint64_t>(std::llround(time));
  ++(calls_.*counter).calls;
  (calls_.*counter).nanoseconds += nanoseconds;
  now_ += nanoseconds;
}

void SimulatedMemory::divide(std::uintptr_t address, std::size_t bytes) {
  if (!options_.divisible) return;
  handles_.split(address);
  handles_.split(address + bytes);
}

MemoryInfo SimulatedMemory::info() const {
  const std::size_t capacity = capacity_;
  return {.free = capacity - std::min<std::size_t>(committed_, capacity), .total = capacity};
}

void* SimulatedMemory::reserve(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::reserve, &LatencyTable::reserve, bytes);
  if (bytes_) return bytes_->reserve(bytes);
  if (bytes > device_span) return nullptr;
  const std::size_t size = round_up(bytes, options_.large_page);
  const auto range = std::ranges::find_if(addresses_, [&](const auto& known) { return known.second >= size; });
  if (range == addresses_.end()) return nullptr;
  const std::uintptr_t address = range->first;
  auto rest = addresses_.extract(range);
  rest.key() += size;
  rest.mapped() -= size;
  if (rest.mapped() != 0) addresses_.insert(std::move(rest));
  return reinterpret_cast<void*>(address);
}

void SimulatedMemory::unreserve(void* address, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::unreserve, &LatencyTable::unreserve, bytes);
  if (bytes_) return bytes_->unreserve(address, bytes);
  // Reserve the lowest addresses first, so a new pool sees the same addresses.
  try {
    auto range =
        addresses_.emplace(reinterpret_cast<std::uintptr_t>(address), round_up(bytes, options_.large_page)).first;
    if (const auto next = std::next(range); next != addresses_.end() && next->first == range->first + range->second) {
      range->second += next->second;
      addresses_.erase(next);
    }
    if (range == addresses_.begin()) return;
    if (const auto below = std::prev(range); below->first + below->second == range->first) {
      below->second += range->second;
      addresses_.erase(range);
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the entry, the range is not reused.
  }
}

bool SimulatedMemory::commit(void* address, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::create, &LatencyTable::create, bytes);
  if (committed_ > capacity_ || bytes > capacity_ - committed_) return false;
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  handles_.check_free(start, bytes, "commit");
  if (bytes_ && !bytes_->commit(address, bytes)) return false;
  try {
    handles_.add({.address = start, .bytes = bytes}, "commit");
  } catch (...) {
    if (bytes_) bytes_->decommit(address, bytes);
    throw;
  }
  charge(&DriverCalls::map, &LatencyTable::map, bytes);
  charge(&DriverCalls::set_access, &LatencyTable::set_access, bytes);
  committed_ = committed_ + bytes;
  return true;
}

void SimulatedMemory::decommit(void* address, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  divide(start, bytes);
  for (const auto& [at, handle] : handles_.take(start, bytes, "decommit")) {
    charge(&DriverCalls::unmap, &LatencyTable::unmap, handle.bytes);
    charge(&DriverCalls::release, &LatencyTable::release, handle.bytes);
  }
  if (bytes_) bytes_->decommit(address, bytes);
  committed_ = committed_ - bytes;
}

bool SimulatedMemory::move(void* from, void* to, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  const auto target = reinterpret_cast<std::uintptr_t>(to);
  divide(source, bytes);
  if (bytes_) {
    handles_.whole(source, bytes, "move");
    handles_.check_free(target, bytes, "move");
    if (!bytes_->move(from, to, bytes)) return false;
  }
  handles_.move(source, target, bytes, "move");
  for (const auto& handle : handles_.whole(target, bytes, "move")) {
    charge(&DriverCalls::map, &LatencyTable::map, handle.bytes);
    charge(&DriverCalls::set_access, &LatencyTable::set_access, handle.bytes);
    charge(&DriverCalls::unmap, &LatencyTable::unmap, handle.bytes);
  }
  return true;
}

void SimulatedMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream stream) {
  if (bytes_) bytes_->fill(address, bytes, value, stream);
}

EventId SimulatedMemory::record_event(Stream) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::event_record, &LatencyTable::event_record);
  finish_times_[++last_event_] = now_ + event_delay_;
  return last_event_;
}

bool SimulatedMemory::event_finished(EventId event) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::event_query, &LatencyTable::event_query);
  const auto entry = finish_times_.find(event);
  if (entry == finish_times_.end()) return true;
  if (entry->second > now_) return false;
  finish_times_.erase(entry);
  return true;
}

void SimulatedMemory::stream_wait(Stream, EventId event) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::stream_wait, &LatencyTable::stream_wait);
  const auto entry = finish_times_.find(event);
  if (entry != finish_times_.end() && entry->second > now_) ++waits_;
}

void SimulatedMemory::synchronize(EventId event) {
  std::lock_guard lock(mutex_);
  charge(&DriverCalls::synchronize, &LatencyTable::synchronize);
  const auto entry = finish_times_.find(event);
  if (entry == finish_times_.end()) return;
  const std::uint64_t finished = std::max(now_, entry->second);
  calls_.synchronize.nanoseconds += finished - now_;
  now_ = finished;
  finish_times_.erase(entry);
}

void SimulatedMemory::discard_event(EventId event) noexcept {
  std::lock_guard lock(mutex_);
  finish_times_.erase(event);
}

}  // namespace poolgrad
