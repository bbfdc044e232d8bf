// Memory adaptors for the pool's tests: they delay events, fail calls, or limit memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

/// Events that finish when the caller says so, to test the pool while other streams still work. An event is unfinished
/// until a later call of finish_events() or synchronize().
class DelayedMemory : public GuardedAdaptor {
 public:
  using GuardedAdaptor::GuardedAdaptor;

  /// All events recorded so far are finished.
  void finish_events() {
    const std::lock_guard lock(mutex_);
    unfinished_.clear();
  }
  /// Returns the number of events that are recorded but not finished, spent or discarded.
  std::size_t unfinished_events() const {
    const std::lock_guard lock(mutex_);
    return unfinished_.size();
  }
  /// Returns how often a stream had to wait for an unfinished event.
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

/// Fault injection. Counts the calls that can fail, from 1, and fails the chosen ones: reserve() returns nullptr,
/// commit() and move() return false, the others throw DeviceError. With fail_by(), all run its function instead. No
/// call fails before fail_call().
class FailingMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;

  /// Makes calls number `first` to `first + count - 1` fail.
  void fail_call(std::uint64_t first, std::uint64_t count = 1) {
    first_ = first;
    count_ = count;
  }
  /// Makes a failing call throw the exception of `raise`. Must not run while other calls run.
  void fail_by(std::function<void()> raise) { raise_ = std::move(raise); }
  /// Returns how many calls could have failed so far.
  std::uint64_t calls() const { return calls_; }

  void* reserve(std::size_t bytes) override { return due() ? nullptr : inner().reserve(bytes); }
  bool commit(void* address, std::size_t bytes) override { return !due() && inner().commit(address, bytes); }
  bool move(void* from, void* to, std::size_t bytes) override { return !due() && inner().move(from, to, bytes); }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override {
    check("fill");
    inner().fill(address, bytes, value, stream);
  }
  EventId record_event(Stream stream) override {
    check("record_event");
    return inner().record_event(stream);
  }
  bool event_finished(EventId event) override {
    check("event_finished");
    return inner().event_finished(event);
  }
  void stream_wait(Stream stream, EventId event) override {
    check("stream_wait");
    inner().stream_wait(stream, event);
  }
  void synchronize(EventId event) override {
    check("synchronize");
    inner().synchronize(event);
  }

 private:
  bool due() {
    const bool fails = ++calls_ - first_ < count_;
    if (fails && raise_) raise_();
    return fails;
  }
  void check(const char* function) {
    if (due()) throw DeviceError("[" + std::string(function) + "] failed on request, call " + std::to_string(calls_));
  }

  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> first_{0};
  std::atomic<std::uint64_t> count_{0};
  std::function<void()> raise_;
};

/// A part of a device: several pools share it, or a program limits its use of a GPU. Commits at most `limit` bytes;
/// info() reports that part alone.
class LimitedMemory : public MemoryAdaptor {
 public:
  LimitedMemory(std::unique_ptr<DeviceMemory> inner, std::size_t limit)
      : MemoryAdaptor(std::move(inner)), limit_(limit) {}

  MemoryInfo info() const override {
    const MemoryInfo whole = MemoryAdaptor::info();
    const std::size_t left = limit_ - committed_.load();
    return {.free = left < whole.free ? left : whole.free, .total = limit_ < whole.total ? limit_ : whole.total};
  }
  bool commit(void* address, std::size_t bytes) override {
    // Check before adding: a count that includes a too large request would make another thread's small request fail.
    std::size_t committed = committed_.load();
    do {
      if (bytes > limit_ - committed) return false;
    } while (!committed_.compare_exchange_weak(committed, committed + bytes));
    bool given = false;
    try {
      given = inner().commit(address, bytes);
    } catch (...) {
      committed_ -= bytes;
      throw;
    }
    if (!given) committed_ -= bytes;
    return given;
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    inner().decommit(address, bytes);
    committed_ -= bytes;
  }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> committed_{0};
};

}  // namespace poolgrad
