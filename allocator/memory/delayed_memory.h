// Events that finish when the caller says so, to look at what a pool does while other streams are still at work.
#pragma once

#include <mutex>
#include <set>

#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

/// An event is unfinished until finish_events() or synchronize() has been called after it was recorded.
class DelayedMemory : public GuardedAdaptor {
 public:
  using GuardedAdaptor::GuardedAdaptor;

  /// All events recorded so far are finished.
  void finish_events() {
    const std::lock_guard lock(mutex_);
    unfinished_.clear();
  }
  /// Events recorded and neither finished, spent nor discarded.
  std::size_t unfinished_events() const {
    const std::lock_guard lock(mutex_);
    return unfinished_.size();
  }
  /// How often a stream was made to wait for an unfinished event.
  std::size_t waits() const {
    const std::lock_guard lock(mutex_);
    return waits_;
  }

  EventId record_event(Stream stream) override {
    const EventId event = inner().record_event(stream);
    const std::lock_guard lock(mutex_);
    unfinished_.insert(event);
    return event;
  }
  bool event_finished(EventId event) override {
    {
      const std::lock_guard lock(mutex_);
      if (unfinished_.contains(event)) return false;
    }
    return inner().event_finished(event);
  }
  void stream_wait(Stream stream, EventId event) override {
    {
      const std::lock_guard lock(mutex_);
      if (unfinished_.contains(event)) ++waits_;
    }
    inner().stream_wait(stream, event);
  }
  void synchronize(EventId event) override {
    forget(event);
    inner().synchronize(event);
  }
  void discard_event(EventId event) noexcept override {
    forget(event);
    inner().discard_event(event);
  }

 private:
  void forget(EventId event) {
    const std::lock_guard lock(mutex_);
    unfinished_.erase(event);
  }

  std::set<EventId> unfinished_;
  std::size_t waits_ = 0;
};

}  // namespace poolgrad
