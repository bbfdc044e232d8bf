// A log of what a pool asks of its device, for tests and for looking at a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

enum class DeviceCall : std::uint8_t {
  reserve,
  unreserve,
  commit,
  decommit,
  move,
  fill,
  record_event,
  event_finished,
  stream_wait,
  synchronize,
  discard_event
};

std::string_view to_string(DeviceCall call);

/// One call. What a call has not is 0.
struct CallRecord {
  DeviceCall call{};
  bool succeeded = true;  // not refused, no exception, event finished
  const void* address = nullptr;
  const void* to = nullptr;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;
  EventId event = 0;
  std::uint64_t nanoseconds = 0;  // of the steady clock

  /// "commit 2097152 bytes at 0x7f0000000000"
  std::string text() const;
};

/// Logs every call but queries of properties, in the order in which they returned.
class TracedMemory : public GuardedAdaptor {
 public:
  using GuardedAdaptor::GuardedAdaptor;

  std::vector<CallRecord> log() const;
  void clear();

  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;

 private:
  template <typename Function>
  auto logged(CallRecord record, const Function& function);

  std::vector<CallRecord> log_;
};

}  // namespace poolgrad
