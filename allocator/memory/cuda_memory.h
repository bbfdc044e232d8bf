// Device memory and pinned host memory of a GPU, and an interface to the CUDA calls they make. Tests use a fake that
// logs the calls, so that CudaMemory runs on machines without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocator/heap/handles.h"
#include "allocator/memory/device_memory.h"
#include "allocator/memory/host_memory.h"

namespace poolgrad {

/// One CUDA device. Calls that can run out of memory report it by their result; other failures throw CudaError and
/// clear CUDA's sticky error. Calls are thread-safe, create no context but the device's primary one, and restore the
/// current context.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  /// The unit of handle sizes; 0 if the device has no virtual memory management.
  virtual std::size_t granularity() = 0;
  virtual MemoryInfo memory_info() = 0;
  /// The GPU's UUID.
  virtual std::string identity() { return {}; }
  /// Calls `call` with the device current in this thread, for libraries that use CUDA's current device.
  virtual void with_current(const std::function<void()>& call) { call(); }

  /// cuMemAddressReserve; 0 if no such address range is free.
  virtual std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) = 0;
  virtual void address_free(std::uintptr_t address, std::size_t bytes) = 0;
  /// cuMemCreate
  virtual std::optional<std::uint64_t> create(std::size_t bytes) = 0;
  virtual void release(std::uint64_t handle) = 0;
  /// cuMemMap: maps the whole handle at `address`. A handle may have several mappings.
  virtual bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) = 0;
  /// cuMemSetAccess: gives the device read and write access to a range of whole mappings.
  virtual bool set_access(std::uintptr_t address, std::size_t bytes) = 0;
  /// cuMemUnmap: one whole mapping.
  virtual void unmap(std::uintptr_t address, std::size_t bytes) = 0;

  /// cuDeviceCanAccessPeer: whether device `peer` can access this device's memory.
  virtual bool is_reachable_from(int /*peer*/) { return false; }
  /// As set_access(), for another device.
  virtual bool set_access_of(int /*peer*/, std::uintptr_t /*address*/, std::size_t /*bytes*/) { return false; }
  /// cuMemExportToShareableHandle: returns a new file descriptor; -1 if the device cannot export handles.
  virtual int export_handle(std::uint64_t /*handle*/) { return -1; }
  /// cuMemImportFromShareableHandle: imports a handle of `bytes`; none if the device does not support it.
  virtual std::optional<std::uint64_t> import_handle(int /*descriptor*/, std::size_t /*bytes*/) { return std::nullopt; }

  /// cudaMalloc; 0 if out of memory.
  virtual std::uintptr_t malloc(std::size_t bytes) = 0;
  virtual void free(std::uintptr_t address) = 0;

  virtual void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) = 0;

  /// cudaHostRegister: pins host memory for all devices. Returns false if the driver refuses.
  virtual bool host_register(std::uintptr_t address, std::size_t bytes) = 0;
  virtual void host_unregister(std::uintptr_t address) = 0;

  /// Creates an event without timing, which would make it slow.
  virtual std::uint64_t event_create() = 0;
  virtual void event_destroy(std::uint64_t event) = 0;
  virtual void event_record(std::uint64_t event, std::uint64_t stream) = 0;
  virtual bool event_query(std::uint64_t event) = 0;
  virtual void event_synchronize(std::uint64_t event) = 0;
  virtual void stream_wait(std::uint64_t stream, std::uint64_t event) = 0;

  /// Creates a stream that does not synchronize with the default stream.
  virtual std::uint64_t stream_create() { no_streams(); }
  virtual void stream_destroy(std::uint64_t /*stream*/) { no_streams(); }
  virtual void stream_synchronize(std::uint64_t /*stream*/) { no_streams(); }
  /// cudaStreamBeginCapture: records work on the stream, and on streams that wait for its events, instead of running
  /// it. Calls without a stream run as usual.
  virtual void begin_capture(std::uint64_t /*stream*/) { no_streams(); }
  /// cudaStreamIsCapturing: whether any thread captures the stream.
  virtual bool is_captured(std::uint64_t /*stream*/) { return false; }
  /// Ends the capture and returns a graph that can be launched. Throws CudaError, and discards the capture, if it was
  /// invalidated.
  virtual std::uint64_t end_capture(std::uint64_t /*stream*/) { no_streams(); }
  virtual void graph_launch(std::uint64_t /*graph*/, std::uint64_t /*stream*/) { no_streams(); }
  virtual void graph_destroy(std::uint64_t /*graph*/) { no_streams(); }

 private:
  [[noreturn]] static void no_streams();
};

/// Whether a device of compute capability major.minor can run code compiled for one of these architectures, in the
/// format of CMAKE_CUDA_ARCHITECTURES: "90a-real 80-virtual". GPU code runs on the same major version with the same or
/// a higher minor one, and 90a code on 9.0 alone. PTX also runs on newer GPUs. True for words that are not numbers.
bool is_compiled_for(std::string_view architectures, int major, int minor);

/// The reason why no CUDA device is usable: no CUDA in this build, no driver, or no device. Empty if one is usable.
std::string cuda_unavailable_reason();

/// "NVIDIA H200, compute capability 9.0, 139.8 GiB, driver 12.8, runtime 13.0"; throws DeviceError as
/// make_cuda_driver().
std::string cuda_device_description(int index);

/// The driver of device `index`. Throws DeviceError with the reason if the device is unusable.
std::unique_ptr<CudaDriver> make_cuda_driver(int index);
/// Throws DeviceError for an unusable device: with this reason, or, if it is empty, because there are only `count`.
[[noreturn]] void refuse_cuda_device(int index, const std::string& reason, int count);

/// Memory used by streams of a device: forwards streams and events to the driver.
class CudaStreams : public DeviceMemory {
 public:
  CudaStreams(int index, std::unique_ptr<CudaDriver> driver);
  ~CudaStreams() override;

  Device device() const override { return device_; }
  EventId record_event(Stream stream) override;
  bool event_finished(EventId event) override;
  void stream_wait(Stream stream, EventId event) override;
  void synchronize(EventId event) override;
  void discard_event(EventId event) noexcept override;

 protected:
  CudaDriver& driver() const { return *driver_; }
  /// An event that is already finished.
  EventId finished_event();
  /// Waits for the event without spending it.
  void wait_for(EventId event);

 private:
  std::uint64_t event_of(EventId event) const;  // 0 if spent, or finished from the start
  void refuse_if_recorded(Stream stream, const char* call) const;

  const Device device_;
  const std::unique_ptr<CudaDriver> driver_;
  mutable std::mutex events_mutex_;  // never held during a driver call
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> events_;  // recorded and not spent
  std::vector<std::uint64_t> unused_events_;
};

/// GPU memory through CUDA's virtual memory management: reserves addresses once, and maps, moves and unmaps handles of
/// physical memory. Each commit() creates one handle; decommit() and move() take whole handles (else DeviceError, which
/// in decommit() ends the program with its message). A call that fails half-way releases its handles and changes
/// nothing. Other programs also use the device, so info() may report less than was released here.
///
/// There is no variant on cudaMalloc: a pool on it could neither release nor move pages. All GPUs that the kernels
/// support (sm_80 and newer) have virtual memory management.
class CudaMemory : public CudaStreams {
 public:
  /// Throws DeviceError if the device has no virtual memory management.
  CudaMemory(int index, std::unique_ptr<CudaDriver> driver);
  /// Device cuda:`index`. Throws DeviceError if it is unusable.
  explicit CudaMemory(int index) : CudaMemory(index, make_cuda_driver(index)) {}

  std::size_t granularity() const override { return granularity_; }
  MemoryInfo info() const override { return driver().memory_info(); }
  void* reserve(std::size_t bytes) override;
  void unreserve(void* address, std::size_t bytes) noexcept override;
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool move(void* from, void* to, std::size_t bytes) override;
  bool divisible() const override { return false; }
  bool share_with(Device peer) override;
  std::optional<ExportedMemory> export_range(const void* address, std::size_t bytes) override;
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;

 private:
  bool give_access(std::uintptr_t address, std::size_t bytes);

  const std::size_t granularity_;
  /// Taken before `mutex_`: shared to map and unmap, exclusive in share_with(), which must see every mapping.
  std::shared_mutex sharing_;
  std::vector<int> peers_;
  std::mutex mutex_;  // never held during a driver call
  MappedHandles handles_;
};

/// Device memory that this or another process exported, mapped for its lifetime. Use it like other memory of the
/// device. The exporting pool does not track this use, so its block must stay allocated until the work is done.
class ImportedMemory {
 public:
  /// The caller may close the descriptors afterwards. Throws DeviceError, and CudaError for an invalid descriptor.
  ImportedMemory(int index, const ExportedMemory& exported, std::unique_ptr<CudaDriver> driver);
  ImportedMemory(int index, const ExportedMemory& exported)
      : ImportedMemory(index, exported, make_cuda_driver(index)) {}
  ~ImportedMemory();
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_ + offset_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void give_up() noexcept;

  const std::unique_ptr<CudaDriver> driver_;
  const std::size_t offset_, bytes_;
  std::uintptr_t address_ = 0;
  std::size_t reserved_ = 0;
  std::vector<MappedHandles::Handle> mapped_;
};

/// Pinned host memory: the device copies from and to it asynchronously, while copies of pageable memory go through the
/// driver and block the caller. Its streams are those of one device, and one more for the host. Blocks on the host's
/// stream are for reads and writes by the host: its work is immediate, and its waits block the caller. If the program
/// reports copies with CachingAllocator::use(), a pool never gives the host a block that a copy still uses.
class PinnedMemory : public CudaStreams {
 public:
  /// The unit and alignment of pinning. A copy must not cross separately pinned ranges; one page never does.
  static constexpr std::size_t page = std::size_t{2} << 20;
  /// The id of the host's stream.
  static constexpr std::uint64_t host_stream = std::uint64_t{1} << 51;

  /// Pins at most `total` bytes.
  PinnedMemory(int index, std::unique_ptr<CudaDriver> driver, std::size_t total);
  /// For cuda:`index`. Throws DeviceError if it is unusable. Pins at most a quarter of the machine's memory.
  explicit PinnedMemory(int index)
      : PinnedMemory(index, make_cuda_driver(index), HostMemory().info().total / 4 / page * page) {}

  std::size_t granularity() const override { return page; }
  MemoryInfo info() const override { return host_.info(); }
  void* reserve(std::size_t bytes) override { return host_.reserve(bytes); }
  void unreserve(void* address, std::size_t bytes) noexcept override { host_.unreserve(address, bytes); }
  bool commit(void* address, std::size_t bytes) override;
  void decommit(void* address, std::size_t bytes) noexcept override;
  bool divisible() const override { return false; }
  void fill(void* address, std::size_t bytes, unsigned char value, Stream stream) override;
  EventId record_event(Stream stream) override;
  void stream_wait(Stream stream, EventId event) override;

 private:
  HostMemory host_;
  std::mutex mutex_;
  MappedHandles pinned_;
};

}  // namespace poolgrad
