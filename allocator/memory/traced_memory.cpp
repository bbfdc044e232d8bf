#include "allocator/memory/traced_memory.h"

#include <array>
#include <chrono>
#include <sstream>
#include <type_traits>

namespace poolgrad {

std::string_view to_string(DeviceCall call) {
  static constexpr std::array<std::string_view, 11> names = {
      "reserve",      "unreserve",      "commit",      "decommit",    "move",         "fill",
      "record_event", "event_finished", "stream_wait", "synchronize", "discard_event"};
  return names[static_cast<std::size_t>(call)];
}

std::string CallRecord::text() const {
  std::ostringstream text;
  text << to_string(call);
  if (bytes != 0) text << " " << bytes << " bytes";
  if (address != nullptr) text << " at " << address;
  if (to != nullptr) text << " to " << to;
  const bool speaks_of_a_stream =
      call == DeviceCall::fill || call == DeviceCall::record_event || call == DeviceCall::stream_wait;
  if (speaks_of_a_stream) text << " stream " << stream;
  if (event != 0) text << " event " << event;
  if (!succeeded) text << ": no";
  return text.str();
}

// Takes the time of one call and logs it, also when it throws. Results of calls go into the record.
template <typename Function>
auto TracedMemory::logged(CallRecord record, const Function& function) {
  struct Entry {
    TracedMemory& memory;
    CallRecord record;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    ~Entry() {
      const auto time = std::chrono::steady_clock::now() - start;
      record.nanoseconds =
          static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
      const std::lock_guard lock(memory.mutex_);
      memory.log_.push_back(record);
    }
  } entry{*this, record};
  using Result = std::invoke_result_t<Function>;
  entry.record.succeeded = false;
  if constexpr (std::is_void_v<Result>) {
    function();
    entry.record.succeeded = true;
  } else {
    const Result result = function();
    entry.record.succeeded = static_cast<bool>(result);
    if constexpr (std::is_same_v<Result, void*>) entry.record.address = result;
    if constexpr (std::is_same_v<Result, EventId>) entry.record.event = result;
    return result;
  }
}

std::vector<CallRecord> TracedMemory::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void TracedMemory::clear() {
  const std::lock_guard lock(mutex_);
  log_.clear();
}

void* TracedMemory::reserve(std::size_t bytes) {
  return logged({.call = DeviceCall::reserve, .bytes = bytes}, [&] { return inner().reserve(bytes); });
}

void TracedMemory::unreserve(void* address, std::size_t bytes) noexcept {
  logged({.call = DeviceCall::unreserve, .address = address, .bytes = bytes},
         [&] { inner().unreserve(address, bytes); });
}

bool TracedMemory::commit(void* address, std::size_t bytes) {
  return logged({.call = DeviceCall::commit, .address = address, .bytes = bytes},
                [&] { return inner().commit(address, bytes); });
}

void TracedMemory::decommit(void* address, std::size_t bytes) noexcept {
  logged({.call = DeviceCall::decommit, .address = address, .bytes = bytes}, [&] { inner().decommit(address, bytes); });
}

bool TracedMemory::move(void* from, void* to, std::size_t bytes) {
  return logged({.call = DeviceCall::move, .address = from, .to = to, .bytes = bytes},
                [&] { return inner().move(from, to, bytes); });
}

void TracedMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream stream) {
  logged({.call = DeviceCall::fill, .address = address, .bytes = bytes, .stream = stream.id},
         [&] { inner().fill(address, bytes, value, stream); });
}

EventId TracedMemory::record_event(Stream stream) {
  return logged({.call = DeviceCall::record_event, .stream = stream.id}, [&] { return inner().record_event(stream); });
}

bool TracedMemory::event_finished(EventId event) {
  return logged({.call = DeviceCall::event_finished, .event = event}, [&] { return inner().event_finished(event); });
}

void TracedMemory::stream_wait(Stream stream, EventId event) {
  logged({.call = DeviceCall::stream_wait, .stream = stream.id, .event = event},
         [&] { inner().stream_wait(stream, event); });
}

void TracedMemory::synchronize(EventId event) {
  logged({.call = DeviceCall::synchronize, .event = event}, [&] { inner().synchronize(event); });
}

void TracedMemory::discard_event(EventId event) noexcept {
  logged({.call = DeviceCall::discard_event, .event = event}, [&] { inner().discard_event(event); });
}

}  // namespace poolgrad
