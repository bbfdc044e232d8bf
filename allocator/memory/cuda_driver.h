// The calls to CUDA that CudaMemory makes, as an interface: the real one where a GPU is, a fake that keeps a record in
// tests, so that all of CudaMemory runs on machines without one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/memory/device_memory.h"

namespace poolgrad {

/// One device of CUDA. Calls that can be refused for want of memory say so by their result; any other failure throws
/// CudaError after clearing the error that CUDA would report again. Calls may be made from any thread; they make no
/// context but the device's primary one, and leave current what was.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  /// The sizes of handles are multiples of it; 0 if the device has no virtual memory management.
  virtual std::size_t granularity() = 0;
  virtual MemoryInfo memory_info() = 0;

  /// cuMemAddressReserve: 0 if there are no such addresses.
  virtual std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) = 0;
  virtual void address_free(std::uintptr_t address, std::size_t bytes) = 0;
  /// cuMemCreate
  virtual std::optional<std::uint64_t> create(std::size_t bytes) = 0;
  virtual void release(std::uint64_t handle) = 0;
  /// cuMemMap: the whole handle at `address`; one handle may be at several.
  virtual bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) = 0;
  /// cuMemSetAccess: the device may read and write a range of whole mappings.
  virtual bool set_access(std::uintptr_t address, std::size_t bytes) = 0;
  /// cuMemUnmap: one whole mapping.
  virtual void unmap(std::uintptr_t address, std::size_t bytes) = 0;

  /// cudaMalloc: 0 if there is no such memory.
  virtual std::uintptr_t malloc(std::size_t bytes) = 0;
  virtual void free(std::uintptr_t address) = 0;

  virtual void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) = 0;

  /// Events take no times, which would make them slow.
  virtual std::uint64_t event_create() = 0;
  virtual void event_destroy(std::uint64_t event) = 0;
  virtual void event_record(std::uint64_t event, std::uint64_t stream) = 0;
  virtual bool event_query(std::uint64_t event) = 0;
  virtual void event_synchronize(std::uint64_t event) = 0;
  virtual void stream_wait(std::uint64_t stream, std::uint64_t event) = 0;
};

/// Why there is no CUDA device to use: no CUDA in this build, no driver, or no device. Empty where there is one.
std::string cuda_unavailable_reason();

/// "NVIDIA H200, compute capability 9.0, 139.8 GiB, driver 12.8, runtime 13.0"; throws DeviceError as
/// make_cuda_driver().
std::string cuda_device_description(int index);

/// The driver of device `index`. Throws DeviceError with the reason where it cannot be used.
std::unique_ptr<CudaDriver> make_cuda_driver(int index);

}  // namespace poolgrad
