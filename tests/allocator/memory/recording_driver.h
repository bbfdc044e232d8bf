// The driver of an emulated device. It records every call and fails a chosen one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "tests/emulation/device.h"

namespace poolgrad::testing {

class RecordingDriver : public CudaDriver {
 public:
  static constexpr std::size_t page = emulation::Device::page;
  /// The device is out of memory; an error; the host is out of memory while it makes the text of an error.
  enum class Failure { out_of_memory, error, no_text };

  explicit RecordingDriver(std::size_t capacity, std::size_t granularity = page)
      : device_(0, capacity, 0), granularity_(granularity) {}

  /// Makes call number `call` from now on, counted from 1, return a refusal or throw. 0: none.
  void fail_call(std::size_t call, Failure failure) {
    const std::lock_guard lock(mutex_);
    countdown_ = call;
    failure_ = failure;
  }
  /// Work before an event is not done until a wait for the event. Without this call, work is done at once.
  void delay_events() { delayed_ = true; }
  /// Returns the names of the calls so far.
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  /// Returns the calls so far that name a stream, with its handle, as "event_record 7".
  std::vector<std::string> stream_calls() const {
    const std::lock_guard lock(mutex_);
    return stream_calls_;
  }
  void forget_calls() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    stream_calls_.clear();
  }
  /// Returns the number of handles, mappings, reservations, segments, events and pinned ranges that exist.
  std::int64_t objects() const { return objects_ + events_; }
  std::int64_t events() const { return events_; }
  /// Returns a byte of the device after the work of its default stream.
  unsigned char read(const void* address) {
    unsigned char byte = 0;
    device_.copy(0, &byte, address, 1);
    return byte;
  }

  std::size_t granularity() override { return granularity_; }
  MemoryInfo memory_info() override { return driver_->memory_info(); }

  std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) override {
    return allowed("reserve") ? made(driver_->address_reserve(bytes, alignment)) : 0;
  }
  void address_free(std::uintptr_t address, std::size_t bytes) override {
    allowed("unreserve");
    driver_->address_free(address, bytes);
    --objects_;
  }
  std::optional<std::uint64_t> create(std::size_t bytes) override {
    return allowed("create") ? made(driver_->create(bytes)) : std::nullopt;
  }
  void release(std::uint64_t handle) override {
    allowed("release");
    driver_->release(handle);
    --objects_;
  }
  bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) override {
    return allowed("map") && made(driver_->map(address, bytes, handle));
  }
  bool set_access(std::uintptr_t address, std::size_t bytes) override {
    return allowed("set_access") && driver_->set_access(address, bytes);
  }
  void unmap(std::uintptr_t address, std::size_t bytes) override {
    allowed("unmap");
    driver_->unmap(address, bytes);
    --objects_;
  }

  std::uintptr_t malloc(std::size_t bytes) override { return allowed("malloc") ? made(driver_->malloc(bytes)) : 0; }
  void free(std::uintptr_t address) override {
    allowed("free");
    driver_->free(address);
    --objects_;
  }
  void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) override {
    allowed("fill");
    driver_->fill(address, bytes, value, stream);
  }
  bool host_register(std::uintptr_t address, std::size_t bytes) override {
    return allowed("host_register") && made(driver_->host_register(address, bytes));
  }
  void host_unregister(std::uintptr_t address) override {
    allowed("host_unregister");
    driver_->host_unregister(address);
    --objects_;
  }

  std::uint64_t event_create() override {
    if (!allowed("event_create")) throw CudaError("[event_create] out of memory");
    ++events_;
    return driver_->event_create();
  }
  void event_destroy(std::uint64_t event) override {
    allowed("event_destroy");
    driver_->event_destroy(event);
    --events_;
  }
  void event_record(std::uint64_t event, std::uint64_t stream) override {
    on_stream("event_record", stream);
    driver_->event_record(event, stream);
  }
  bool event_query(std::uint64_t event) override {
    allowed("event_query");
    if (!delayed_) driver_->event_synchronize(event);
    return !delayed_;
  }
  void event_synchronize(std::uint64_t event) override {
    allowed("event_synchronize");
    driver_->event_synchronize(event);
  }
  void stream_wait(std::uint64_t stream, std::uint64_t event) override {
    on_stream("stream_wait", stream);
    driver_->stream_wait(stream, event);
  }

 private:
  /// Records a call; returns false if the call must be refused.
  bool allowed(const std::string& name) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(name);
    if (countdown_ == 0 || --countdown_ != 0) return true;
    if (failure_ == Failure::error) throw CudaError("[" + name + "] failed on request");
    if (failure_ == Failure::no_text) throw std::bad_alloc();
    return false;
  }
  void on_stream(const std::string& name, std::uint64_t stream) {
    allowed(name);
    const std::lock_guard lock(mutex_);
    stream_calls_.push_back(name + " " + std::to_string(stream));
  }
  /// Counts an object that was made.
  template <class T>
  T made(T object) {
    if (object) ++objects_;
    return object;
  }

  emulation::Device device_;
  const std::unique_ptr<CudaDriver> driver_ = device_.driver();
  const std::size_t granularity_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_, stream_calls_;
  std::atomic<std::int64_t> objects_ = 0, events_ = 0;
  std::atomic<bool> delayed_ = false;
  std::size_t countdown_ = 0;
  Failure failure_ = Failure::error;
};

}  // namespace poolgrad::testing
