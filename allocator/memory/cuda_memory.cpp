#include "allocator/memory/cuda_memory.h"

#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/front/thread_cache.h"

namespace poolgrad {

namespace {

// For calls that take something back, where there is nothing left to do if they fail: the device is lost or the program
// ends, and the next call that can report an error will.
template <typename Function>
void quietly(const Function& function) noexcept {
  try {
    function();
  } catch (const Error&) {
  }
}

// Takes back what was done if the scope is left before it is complete.
template <typename Function>
class Undo {
 public:
  explicit Undo(Function function) : function_(std::move(function)) {}
  ~Undo() {
    if (pending_) quietly(function_);
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void cancel() { pending_ = false; }

 private:
  Function function_;
  bool pending_ = true;
};

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

Device cuda_device(int index) {
  if (index < 0 || index > 255) {
    throw DeviceError("[allocator] CUDA devices are cuda:0 to cuda:255, got index " + std::to_string(index));
  }
  return Device{DeviceType::cuda, static_cast<std::uint8_t>(index)};
}

}  // namespace

CudaMemory::CudaMemory(int index, std::unique_ptr<CudaDriver> driver)
    : device_(cuda_device(index)), driver_(std::move(driver)), granularity_(driver_->granularity()) {
  if (granularity_ == 0) {
    throw DeviceError("[allocator] " + to_string(device_) + " has no virtual memory management");
  }
}

CudaMemory::~CudaMemory() {
  for (const auto& [id, event] : events_) quietly([&, lost = event] { driver_->event_destroy(lost); });
  for (const std::uint64_t event : unused_events_) quietly([&] { driver_->event_destroy(event); });
}

void* CudaMemory::reserve(std::size_t bytes) {
  return reinterpret_cast<void*>(driver_->address_reserve(bytes, granularity_));
}

void CudaMemory::unreserve(void* address, std::size_t bytes) noexcept {
  quietly([&] { driver_->address_free(address_of(address), bytes); });
}

bool CudaMemory::commit(void* address, std::size_t bytes) {
  const std::uintptr_t start = address_of(address);
  {
    const std::lock_guard lock(mutex_);
    handles_.check_free(start, bytes, "commit");
  }
  const std::optional<std::uint64_t> handle = driver_->create(bytes);
  if (!handle) return false;
  Undo release([&] { driver_->release(*handle); });
  if (!driver_->map(start, bytes, *handle)) return false;
  Undo unmap([&] { driver_->unmap(start, bytes); });
  if (!driver_->set_access(start, bytes)) return false;
  const std::lock_guard lock(mutex_);
  handles_.add({.address = start, .bytes = bytes, .id = *handle}, "commit");
  unmap.cancel();
  release.cancel();
  return true;
}

void CudaMemory::decommit(void* address, std::size_t bytes) noexcept {
  MappedHandles::Handles given_back;
  {
    const std::lock_guard lock(mutex_);
    given_back = handles_.take(address_of(address), bytes, "decommit");
  }
  for (const auto& [start, handle] : given_back) {
    quietly([&, bytes_of = handle.bytes, at = start] { driver_->unmap(at, bytes_of); });
    quietly([&, id = handle.id] { driver_->release(id); });
  }
}

bool CudaMemory::move(void* from, void* to, std::size_t bytes) {
  const std::uintptr_t target = address_of(to);
  const std::uintptr_t shift = target - address_of(from);
  std::vector<MappedHandles::Handle> moved;
  {
    const std::lock_guard lock(mutex_);
    moved = handles_.whole(address_of(from), bytes, "move");
    handles_.check_free(target, bytes, "move");
  }
  // The new place first: a handle may be behind two addresses, so until all is well the old place is untouched.
  std::size_t mapped = 0;
  Undo unmap([&] {
    while (mapped > 0) {
      const auto& handle = moved[--mapped];
      driver_->unmap(handle.address + shift, handle.bytes);
    }
  });
  for (const auto& handle : moved) {
    if (!driver_->map(handle.address + shift, handle.bytes, handle.id)) return false;
    ++mapped;
  }
  if (!driver_->set_access(target, bytes)) return false;
  {
    const std::lock_guard lock(mutex_);
    handles_.move(address_of(from), target, bytes, "move");
  }
  unmap.cancel();
  for (const auto& handle : moved) quietly([&] { driver_->unmap(handle.address, handle.bytes); });
  return true;
}

void CudaMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream stream) {
  driver_->fill(address_of(address), bytes, value, ThreadCaches::handle_of(stream));
}

EventId CudaMemory::record_event(Stream stream) {
  std::uint64_t event = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!unused_events_.empty()) {
      event = unused_events_.back();
      unused_events_.pop_back();
    }
  }
  if (event == 0) event = driver_->event_create();
  Undo destroy([&] { driver_->event_destroy(event); });
  driver_->event_record(event, ThreadCaches::handle_of(stream));
  const std::lock_guard lock(mutex_);
  unused_events_.reserve(unused_events_.size() + events_.size() + 1);  // for discard_event(), which cannot fail
  events_.emplace(++last_event_, event);
  destroy.cancel();
  return last_event_;
}

std::uint64_t CudaMemory::event_of(EventId event) const {
  const std::lock_guard lock(mutex_);
  const auto entry = events_.find(event);
  return entry == events_.end() ? 0 : entry->second;
}

bool CudaMemory::event_finished(EventId event) {
  const std::uint64_t known = event_of(event);
  if (known != 0 && !driver_->event_query(known)) return false;
  discard_event(event);
  return true;
}

void CudaMemory::stream_wait(Stream stream, EventId event) {
  if (const std::uint64_t known = event_of(event); known != 0) {
    driver_->stream_wait(ThreadCaches::handle_of(stream), known);
  }
}

void CudaMemory::synchronize(EventId event) {
  if (const std::uint64_t known = event_of(event); known != 0) driver_->event_synchronize(known);
  discard_event(event);
}

// A wait that is queued keeps what it waits for, so the event can be recorded anew at once.
void CudaMemory::discard_event(EventId event) noexcept {
  const std::lock_guard lock(mutex_);
  const auto entry = events_.find(event);
  if (entry == events_.end()) return;
  unused_events_.push_back(entry->second);
  events_.erase(entry);
}

}  // namespace poolgrad
