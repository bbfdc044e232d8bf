// The memory of a GPU, through CUDA's virtual memory management: addresses are reserved once, and handles of physical
// memory are mapped behind them, moved and taken away.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "allocator/heap/mapped_handles.h"
#include "allocator/memory/cuda_driver.h"

namespace poolgrad {

/// Each commit() makes one handle; decommit() and move() take whole ones (DeviceError else, which in decommit() ends
/// the program with the sentence). A call that fails half-way is undone: what it made is released, and nothing has
/// changed. Other programs use the device too, so info() may say less than was given back here.
///
/// There is no variant on cudaMalloc: its addresses cost memory and cannot be had twice, so a pool on it could neither
/// give pages back nor move them, and the GPUs that the kernels are compiled for (sm_80 and newer) have no need of it.
class CudaMemory : public DeviceMemory {
 public:
  /// Throws DeviceError if the device has no virtual memory management.
  CudaMemory(int index, std::unique_ptr<CudaDriver> driver);
  /// Device cuda:`index`; throws DeviceError where it cannot be used.
  explicit CudaMemory(int index) : CudaMemory(index, make_cuda_driver(index)) {}
  ~CudaMemory() override;

  Device device() const override { return device_; }
  std::size_t granularity() const override { return granularity_; }
  MemoryInfo info() const override { return driver_->memory_info(); }
  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  bool divisible() const override { return false; }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;

 private:
  std::uint64_t event_of(EventId event) const;  // 0 if it is spent

  const Device device_;
  const std::unique_ptr<CudaDriver> driver_;
  const std::size_t granularity_;
  mutable std::mutex mutex_;  // never held during a call of the driver
  MappedHandles handles_;
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> events_;  // recorded and not spent
  std::vector<std::uint64_t> unused_events_;
};

}  // namespace poolgrad
