// Memories that tests look at a pool through: to delay events, to fail calls, to have a part of a device.
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

/// Events that finish when the caller says so, to look at what a pool does while other streams are still at work: an
/// event is unfinished until finish_events() or synchronize() has been called after it was recorded.
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

/// Fault injection. Counts the calls that can fail, from 1, and fails those that are due: reserve() gives nullptr,
/// commit() and move() false, the others throw DeviceError; with fail_by(), all do what it says. Nothing fails until
/// fail_call() is used.
class FailingMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;

  /// Calls number `first` to `first + count - 1` fail.
  void fail_call(std::uint64_t first, std::uint64_t count = 1) {
    first_ = first;
    count_ = count;
  }
  /// A call that is due throws what `raise` throws. Not while calls are made.
  void fail_by(std::function<void()> raise) { raise_ = std::move(raise); }
  /// Calls that could have failed so far.
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

/// A part of a device: what several pools share, or what a program may use of a GPU that others use too. Commits at
/// most `limit` bytes; info() speaks of that part alone.
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
    // Never added first and taken back after: a request that is too large would make a small one of another thread
    // fail.
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
