// Adaptors between a pool and its device memory: the bases of TracedMemory, RaceDetector and test memories.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "allocator/memory/device_memory.h"

namespace poolgrad {

/// Forwards every call; adaptors override some.
class MemoryAdaptor : public DeviceMemory {
 public:
  explicit MemoryAdaptor(std::unique_ptr<DeviceMemory> inner) : inner_(std::move(inner)) {}

  Device device() const override { return inner_->device(); }
  std::size_t granularity() const override { return inner_->granularity(); }
  std::size_t large_page() const override { return inner_->large_page(); }
  MemoryInfo info() const override { return inner_->info(); }
  void* reserve(std::size_t bytes) override { return inner_->reserve(bytes); }
  void unreserve(void* address, std::size_t bytes) noexcept override { inner_->unreserve(address, bytes); }
  bool commit(void* address, std::size_t bytes) override { return inner_->commit(address, bytes); }
  void decommit(void* address, std::size_t bytes) noexcept override { inner_->decommit(address, bytes); }
  bool move(void* from, void* to, std::size_t bytes) override { return inner_->move(from, to, bytes); }
  bool divisible() const override { return inner_->divisible(); }
  bool share_with(Device peer) override { return inner_->share_with(peer); }
  std::optional<ExportedMemory> export_range(const void* address, std::size_t bytes) override {
    return inner_->export_range(address, bytes);
  }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override {
    inner_->fill(address, bytes, value, stream);
  }
  bool queues_work() const override { return inner_->queues_work(); }
  EventId record_event(Stream stream) override { return inner_->record_event(stream); }
  bool event_finished(EventId event) override { return inner_->event_finished(event); }
  void stream_wait(Stream stream, EventId event) override { inner_->stream_wait(stream, event); }
  void synchronize(EventId event) override { inner_->synchronize(event); }
  void discard_event(EventId event) noexcept override { inner_->discard_event(event); }
  void hold_still() override { inner_->hold_still(); }
  void go_on() noexcept override { inner_->go_on(); }
  bool detects_races() const override { return inner_->detects_races(); }
  void touch(const void* address, std::size_t bytes, Stream stream, std::source_location by,
             Access access = Access::writes) override {
    inner_->touch(address, bytes, stream, by, access);
  }

 protected:
  DeviceMemory& inner() { return *inner_; }

 private:
  std::unique_ptr<DeviceMemory> inner_;
};

/// An adaptor with state of its own under a mutex that fork() leaves consistent in the child.
class GuardedAdaptor : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;

  void hold_still() override {
    mutex_.lock();
    MemoryAdaptor::hold_still();
  }
  void go_on() noexcept override {
    MemoryAdaptor::go_on();
    mutex_.unlock();
  }

 protected:
  mutable std::mutex mutex_;
};

}  // namespace poolgrad
