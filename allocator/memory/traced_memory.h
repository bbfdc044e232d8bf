// A log of a pool's device calls, for tests and for diagnosis on a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
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

/// One call. Fields that do not apply are 0.
struct CallRecord {
  DeviceCall call{};
  bool succeeded = true;  // no refusal, no exception, event finished
  const void* address = nullptr;
  const void* to = nullptr;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;
  EventId event = 0;
  std::uint64_t nanoseconds = 0;  // on the steady clock

  /// "commit 2097152 bytes at 0x7f0000000000"
  std::string text() const;
};

/// Logs all calls except property queries, in the order of their return.
class TracedMemory : public GuardedAdaptor {
 public:
  using GuardedAdaptor::GuardedAdaptor;

  std::vector<CallRecord> log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    log_.clear();
  }

  void* reserve(std::size_t bytes) override {
    return logged({.call = DeviceCall::reserve, .bytes = bytes}, [&] { return inner().reserve(bytes); });
  }
  void unreserve(void* address, std::size_t bytes) noexcept override {
    logged({.call = DeviceCall::unreserve, .address = address, .bytes = bytes},
           [&] { inner().unreserve(address, bytes); });
  }
  bool commit(void* address, std::size_t bytes) override {
    return logged({.call = DeviceCall::commit, .address = address, .bytes = bytes},
                  [&] { return inner().commit(address, bytes); });
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    logged({.call = DeviceCall::decommit, .address = address, .bytes = bytes},
           [&] { inner().decommit(address, bytes); });
  }
  bool move(void* from, void* to, std::size_t bytes) override {
    return logged({.call = DeviceCall::move, .address = from, .to = to, .bytes = bytes},
                  [&] { return inner().move(from, to, bytes); });
  }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override {
    logged({.call = DeviceCall::fill, .address = address, .bytes = bytes, .stream = stream.id},
           [&] { inner().fill(address, bytes, value, stream); });
  }
  EventId record_event(Stream stream) override {
    return logged({.call = DeviceCall::record_event, .stream = stream.id},
                  [&] { return inner().record_event(stream); });
  }
  bool event_finished(EventId event) override {
    return logged({.call = DeviceCall::event_finished, .event = event}, [&] { return inner().event_finished(event); });
  }
  void stream_wait(Stream stream, EventId event) override {
    logged({.call = DeviceCall::stream_wait, .stream = stream.id, .event = event},
           [&] { inner().stream_wait(stream, event); });
  }
  void synchronize(EventId event) override {
    logged({.call = DeviceCall::synchronize, .event = event}, [&] { inner().synchronize(event); });
  }
  void discard_event(EventId event) noexcept override {
    logged({.call = DeviceCall::discard_event, .event = event}, [&] { inner().discard_event(event); });
  }

 private:
  /// Times one call and logs it with its result, also when it throws.
  template <typename Function>
  std::invoke_result_t<Function> logged(CallRecord record, const Function& function) {
    struct Entry {
      TracedMemory& memory;
      CallRecord record;
      std::uint64_t start = now();
      ~Entry() {
        record.nanoseconds = now() - start;
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

  static std::uint64_t now();  // on the steady clock

  std::vector<CallRecord> log_;
};

}  // namespace poolgrad
