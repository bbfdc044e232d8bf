#include "allocator/memory/cuda_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory/stream_capture.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

namespace {

// For release calls, whose failure needs no handling: the device is lost or the program ends, and the next call that
// can report an error will.
template <typename Function>
void quietly(const Function& function) noexcept {
  try {
    function();
  } catch (...) {  // also lack of memory for the error message
  }
}

// Runs an undo function unless the scope completes.
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

void CudaDriver::no_streams() { throw CudaError("[graph] the driver cannot record work"); }

void refuse_cuda_device(int index, const std::string& reason, int count) {
  std::string why = reason;
  if (why.empty())
    why = count == 1 ? "the only CUDA device is cuda:0" : "the last CUDA device is cuda:" + std::to_string(count - 1);
  throw DeviceError("[allocator] cuda:" + std::to_string(index) + " cannot be used: " + why + "; use cpu or sim:N");
}

bool is_compiled_for(std::string_view architectures, int major, int minor) {
  while (!architectures.empty()) {
    const std::size_t end = std::min(architectures.find_first_of(" ,;"), architectures.size());
    const std::string_view word = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    if (word.empty()) continue;
    int number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc()) return true;
    const std::string_view kind(rest, word.data() + word.size());  // "a": for one GPU; "f": for one major version
    const bool newer = 10 * major + minor >= number, alike = kind.starts_with('f') || kind.ends_with("-real");
    if (kind.starts_with('a') ? 10 * major + minor == number : newer && (number / 10 == major || !alike)) return true;
  }
  return false;
}

CudaMemory::CudaMemory(int index, std::unique_ptr<CudaDriver> driver_of_index)
    : CudaStreams(index, std::move(driver_of_index)), granularity_(driver().granularity()) {
  if (granularity_ == 0) {
    throw DeviceError("[allocator] " + to_string(device()) + " has no virtual memory management");
  }
}

void* CudaMemory::reserve(std::size_t bytes) {
  return reinterpret_cast<void*>(driver().address_reserve(bytes, granularity_));
}

void CudaMemory::unreserve(void* address, std::size_t bytes) noexcept {
  quietly([&] { driver().address_free(address_of(address), bytes); });
}

bool CudaMemory::give_access(std::uintptr_t address, std::size_t bytes) {
  if (!driver().set_access(address, bytes)) return false;
  return std::ranges::all_of(peers_, [&](int peer) { return driver().set_access_of(peer, address, bytes); });
}

bool CudaMemory::share_with(Device peer) {
  if (!peer.is_cuda()) return false;
  {
    const std::shared_lock lock(sharing_);
    if (peer == device() || std::ranges::count(peers_, peer.index) != 0) return true;
  }
  const std::unique_lock alone(sharing_);
  if (!driver().is_reachable_from(peer.index)) return false;
  MappedHandles::Handles all;
  {
    const std::lock_guard lock(mutex_);
    all = handles_.all();
  }
  for (const auto& [start, handle] : all)
    if (!driver().set_access_of(peer.index, start, handle.bytes)) return false;
  peers_.push_back(peer.index);
  return true;
}

std::optional<ExportedMemory> CudaMemory::export_range(const void* address, std::size_t bytes) {
  const std::shared_lock sharing(sharing_);
  std::vector<MappedHandles::Handle> behind;
  {
    const std::lock_guard lock(mutex_);
    behind = handles_.behind(address_of(address), bytes, "export_range");
  }
  ExportedMemory exported{.handles = {}, .offset = 0, .bytes = bytes};
  Undo close_all([&] {
    for (const ExportedMemory::Handle& handle : exported.handles) ::close(handle.descriptor);
  });
  exported.handles.reserve(behind.size());
  for (const auto& handle : behind) {
    const int descriptor = driver().export_handle(handle.id);
    if (descriptor < 0) return std::nullopt;
    exported.handles.push_back({descriptor, handle.bytes});
  }
  if (!behind.empty()) exported.offset = address_of(address) - behind.front().address;
  close_all.cancel();
  return exported;
}

bool CudaMemory::commit(void* address, std::size_t bytes) {
  const std::shared_lock sharing(sharing_);
  const std::uintptr_t start = address_of(address);
  {
    const std::lock_guard lock(mutex_);
    handles_.check_free(start, bytes, "commit");
  }
  const std::optional<std::uint64_t> handle = driver().create(bytes);
  if (!handle) return false;
  Undo release([&] { driver().release(*handle); });
  if (!driver().map(start, bytes, *handle)) return false;
  Undo unmap([&] { driver().unmap(start, bytes); });
  if (!give_access(start, bytes)) return false;
  const std::lock_guard lock(mutex_);
  handles_.add({.address = start, .bytes = bytes, .id = *handle}, "commit");
  unmap.cancel();
  release.cancel();
  return true;
}

void CudaMemory::decommit(void* address, std::size_t bytes) noexcept {
  const std::shared_lock sharing(sharing_);
  MappedHandles::Handles given_back;
  {
    const std::lock_guard lock(mutex_);
    given_back = handles_.take(address_of(address), bytes, "decommit");
  }
  for (const auto& [start, handle] : given_back) {
    quietly([&, bytes_of = handle.bytes, at = start] { driver().unmap(at, bytes_of); });
    quietly([&, id = handle.id] { driver().release(id); });
  }
}

bool CudaMemory::move(void* from, void* to, std::size_t bytes) {
  const std::shared_lock sharing(sharing_);
  const std::uintptr_t target = address_of(to);
  const std::uintptr_t shift = target - address_of(from);
  std::vector<MappedHandles::Handle> moved;
  {
    const std::lock_guard lock(mutex_);
    moved = handles_.whole(address_of(from), bytes, "move");
    handles_.check_free(target, bytes, "move");
  }
  // Maps the new range first. A handle may be mapped twice, so the old range stays intact until all calls succeed.
  std::size_t mapped = 0;
  Undo unmap([&] {
    while (mapped > 0) {
      const auto& handle = moved[--mapped];
      driver().unmap(handle.address + shift, handle.bytes);
    }
  });
  for (const auto& handle : moved) {
    if (!driver().map(handle.address + shift, handle.bytes, handle.id)) return false;
    ++mapped;
  }
  if (!give_access(target, bytes)) return false;
  {
    const std::lock_guard lock(mutex_);
    handles_.move(address_of(from), target, bytes, "move");
  }
  unmap.cancel();
  for (const auto& handle : moved) quietly([&] { driver().unmap(handle.address, handle.bytes); });
  return true;
}

void CudaMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream stream) {
  driver().fill(address_of(address), bytes, value, ThreadCacheTable::handle_of(stream));
}

ImportedMemory::ImportedMemory(int index, const ExportedMemory& exported, std::unique_ptr<CudaDriver> driver)
    : driver_(std::move(driver)), offset_(exported.offset), bytes_(exported.bytes) {
  const auto refuse = [&](const std::string& why) {
    throw DeviceError("[import] " + why + ": " + std::to_string(bytes_) + " bytes in " +
                      std::to_string(exported.handles.size()) + " handles, on cuda:" + std::to_string(index));
  };
  const std::size_t granularity = driver_->granularity();
  if (granularity == 0) refuse("the device has no virtual memory management");
  for (const auto& handle : exported.handles) reserved_ += handle.bytes;
  if (offset_ > reserved_ || bytes_ > reserved_ - offset_) refuse("the range is larger than its handles");
  if (reserved_ == 0) return;
  address_ = driver_->address_reserve(reserved_, granularity);
  if (address_ == 0) refuse("the device has no addresses left");
  Undo undo([&] { give_up(); });
  mapped_.reserve(exported.handles.size());
  std::uintptr_t next = address_;
  for (const auto& handle : exported.handles) {
    const std::optional<std::uint64_t> id = driver_->import_handle(handle.descriptor, handle.bytes);
    if (!id) refuse("the device cannot import memory");
    Undo release([&] { driver_->release(*id); });
    if (!driver_->map(next, handle.bytes, *id)) refuse("the device has no memory left");
    mapped_.push_back({next, handle.bytes, *id});
    release.cancel();
    next += handle.bytes;
  }
  if (!driver_->set_access(address_, reserved_)) refuse("the device has no memory left");
  undo.cancel();
}

ImportedMemory::~ImportedMemory() { give_up(); }

void ImportedMemory::give_up() noexcept {
  for (const auto& handle : mapped_) {
    quietly([&] { driver_->unmap(handle.address, handle.bytes); });
    quietly([&] { driver_->release(handle.id); });
  }
  if (address_ != 0) quietly([&] { driver_->address_free(address_, reserved_); });
}

// Streams and events.

CudaStreams::CudaStreams(int index, std::unique_ptr<CudaDriver> driver)
    : device_(cuda_device(index)), driver_(std::move(driver)) {}

CudaStreams::~CudaStreams() {
  for (const auto& [id, event] : events_) quietly([&, lost = event] { driver_->event_destroy(lost); });
  for (const std::uint64_t event : unused_events_) quietly([&] { driver_->event_destroy(event); });
}

namespace {

/// A thread that records a step must neither query nor wait.
void refuse_while_recording(const char* call) {
  throw DeviceError("[" + std::string(call) + "] a step is being recorded, so no queued work can be waited for");
}

}  // namespace

/// A recording may use only events of its own pool, which it needs to join streams. Another event would never complete,
/// and a wait for work outside the capture breaks it, also a capture by another library (PyTorch).
void CudaStreams::refuse_if_recorded(Stream stream, const char* call) const {
  if (!driver_->is_captured(ThreadCacheTable::handle_of(stream))) return;
  const StreamCapture* const own = StreamCapture::current();
  if (own == nullptr || !own->has_events_of(*this)) refuse_while_recording(call);
}

EventId CudaStreams::record_event(Stream stream) {
  refuse_if_recorded(stream, "record_event");
  std::uint64_t event = 0;
  {
    const std::lock_guard lock(events_mutex_);
    if (!unused_events_.empty()) {
      event = unused_events_.back();
      unused_events_.pop_back();
    }
  }
  if (event == 0) event = driver_->event_create();
  Undo destroy([&] { driver_->event_destroy(event); });
  driver_->event_record(event, ThreadCacheTable::handle_of(stream));
  const std::lock_guard lock(events_mutex_);
  unused_events_.reserve(unused_events_.size() + events_.size() + 1);  // for discard_event(), which must not throw
  events_.emplace(++last_event_, event);
  destroy.cancel();
  return last_event_;
}

std::uint64_t CudaStreams::event_of(EventId event) const {
  const std::lock_guard lock(events_mutex_);
  const auto entry = events_.find(event);
  return entry == events_.end() ? 0 : entry->second;
}

bool CudaStreams::event_finished(EventId event) {
  const std::uint64_t known = event_of(event);
  if (known != 0 && StreamCapture::current() != nullptr) refuse_while_recording("event_finished");
  if (known != 0 && !driver_->event_query(known)) return false;
  discard_event(event);
  return true;
}

void CudaStreams::stream_wait(Stream stream, EventId event) {
  const std::uint64_t known = event_of(event);
  if (known == 0) return;
  refuse_if_recorded(stream, "stream_wait");
  driver_->stream_wait(ThreadCacheTable::handle_of(stream), known);
}

void CudaStreams::synchronize(EventId event) {
  if (StreamCapture::current() != nullptr) refuse_while_recording("synchronize");
  if (const std::uint64_t known = event_of(event); known != 0) driver_->event_synchronize(known);
  discard_event(event);
}

// A queued wait keeps its target, so the event can be recorded again at once.
void CudaStreams::discard_event(EventId event) noexcept {
  const std::lock_guard lock(events_mutex_);
  const auto entry = events_.find(event);
  if (entry == events_.end()) return;
  unused_events_.push_back(entry->second);
  events_.erase(entry);
}

EventId CudaStreams::finished_event() {
  const std::lock_guard lock(events_mutex_);
  return ++last_event_;
}

void CudaStreams::wait_for(EventId event) {
  if (const std::uint64_t known = event_of(event); known != 0) driver_->event_synchronize(known);
}

// Pinned memory.

PinnedMemory::PinnedMemory(int index, std::unique_ptr<CudaDriver> driver, std::size_t total)
    : CudaStreams(index, std::move(driver)), host_(total, page) {}

bool PinnedMemory::commit(void* address, std::size_t bytes) {
  const std::uintptr_t start = address_of(address);
  {
    const std::lock_guard lock(mutex_);
    pinned_.check_free(start, bytes, "commit");
  }
  if (!host_.commit(address, bytes)) return false;
  Undo decommit([&] { host_.decommit(address, bytes); });
  if (!driver().host_register(start, bytes)) return false;
  Undo unregister([&] { driver().host_unregister(start); });
  const std::lock_guard lock(mutex_);
  pinned_.add({.address = start, .bytes = bytes, .id = start}, "commit");
  unregister.cancel();
  decommit.cancel();
  return true;
}

void PinnedMemory::decommit(void* address, std::size_t bytes) noexcept {
  MappedHandles::Handles given_back;
  {
    const std::lock_guard lock(mutex_);
    given_back = pinned_.take(address_of(address), bytes, "decommit");
  }
  for (const auto& [start, handle] : given_back) quietly([&, at = start] { driver().host_unregister(at); });
  host_.decommit(address, bytes);
}

void PinnedMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream stream) {
  if (stream.id == host_stream)
    std::memset(address, value, bytes);
  else
    driver().fill(address_of(address), bytes, value, ThreadCacheTable::handle_of(stream));
}

EventId PinnedMemory::record_event(Stream stream) {
  return stream.id == host_stream ? finished_event() : CudaStreams::record_event(stream);
}

void PinnedMemory::stream_wait(Stream stream, EventId event) {
  stream.id == host_stream ? wait_for(event) : CudaStreams::stream_wait(stream, event);
}

}  // namespace poolgrad
