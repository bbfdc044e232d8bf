// Detects memory that passes between streams without synchronization, which on a GPU occasionally gives wrong numbers.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

/// Keeps a vector clock per stream, one per event and one for the program. record_event() copies a stream's clock, and
/// stream_wait() joins it into another stream's. synchronize() and a finished event join it into the program's, which
/// precedes all later work of every stream. All threads of the program share one clock.
///
/// touch() throws DeviceError if another stream's last write of any byte is not ordered before it. If it writes, it
/// also throws for another stream's unordered read since. The message names both streams and both call sites. move()
/// throws if any stream still uses the memory; the memory keeps its history. decommit() and unreserve() forget it.
class RaceDetector : public GuardedAdaptor {
 public:
  using GuardedAdaptor::GuardedAdaptor;

  void unreserve(void* address, std::size_t bytes) noexcept override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;
  bool detects_races() const override { return true; }
  void touch(const void* address, std::size_t bytes, Stream stream, std::source_location by,
             Access access = Access::writes) override;

  /// Races found so far.
  std::uint64_t races() const {
    const std::lock_guard lock(mutex_);
    return races_;
  }

 private:
  /// For each stream, the last epoch that is ordered before; record_event() ends an epoch.
  using Clock = std::unordered_map<std::uint64_t, std::uint64_t>;
  struct Use {
    std::uint64_t stream = 0;
    std::uint64_t epoch = 0;
    std::source_location by;
    Access access = Access::writes;
  };
  struct Range {
    std::uintptr_t end = 0;
    std::vector<Use> uses;  // the last write, and reads since
  };
  using Ranges = std::map<std::uintptr_t, Range>;  // by start; disjoint
  struct Race {
    Use earlier;
    std::size_t bytes;  // of the overlap
  };

  static void join(Clock& into, const Clock& from);
  // All require the mutex.
  Clock& clock_of(std::uint64_t stream);
  void split(std::uintptr_t address);
  Ranges::iterator first_in(std::uintptr_t start, std::uintptr_t end);
  void forget(const void* address, std::size_t bytes);
  void program_waits_for(EventId event);
  [[noreturn]] void report(const Race& race, std::uintptr_t start, std::size_t bytes, const std::string& later);

  Ranges ranges_;
  std::unordered_map<std::uint64_t, Clock> streams_;
  std::unordered_map<EventId, Clock> events_;
  Clock program_;
  std::uint64_t races_ = 0;
};

}  // namespace poolgrad
