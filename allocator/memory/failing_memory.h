// Fault injection: lets one chosen call to the device fail.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

/// Counts the calls that can fail, from 1, and fails those that are due: reserve() gives nullptr, commit() and move()
/// false, the others throw DeviceError; with fail_by(), all do what it says. Nothing fails until fail_call() is used.
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

}  // namespace poolgrad
