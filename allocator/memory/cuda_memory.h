// The memory of a GPU, memory of the host that is pinned for it, and the calls to CUDA that they make, as an interface:
// the real one where a GPU is, a fake that keeps a record in tests, so that all of CudaMemory runs on machines without
// one.
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

/// One device of CUDA. Calls that can be refused for want of memory say so by their result; any other failure throws
/// CudaError after clearing the error that CUDA would report again. Calls may be made from any thread; they make no
/// context but the device's primary one, and leave current what was.
class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  /// The sizes of handles are multiples of it; 0 if the device has no virtual memory management.
  virtual std::size_t granularity() = 0;
  virtual MemoryInfo memory_info() = 0;
  /// Which GPU it is, among those of all machines (its UUID).
  virtual std::string identity() { return {}; }
  /// Calls `call` with the device current in this thread: for libraries that ask CUDA which one is.
  virtual void with_current(const std::function<void()>& call) { call(); }

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

  /// cuDeviceCanAccessPeer: whether device `peer` can be given access to this one's memory.
  virtual bool is_reachable_from(int /*peer*/) { return false; }
  /// As set_access(), for another device.
  virtual bool set_access_of(int /*peer*/, std::uintptr_t /*address*/, std::size_t /*bytes*/) { return false; }
  /// cuMemExportToShareableHandle: a new file descriptor; -1 where handles of this device cannot be exported.
  virtual int export_handle(std::uint64_t /*handle*/) { return -1; }
  /// cuMemImportFromShareableHandle: a handle of `bytes` that was exported; nothing where the device has no such call.
  virtual std::optional<std::uint64_t> import_handle(int /*descriptor*/, std::size_t /*bytes*/) { return std::nullopt; }

  /// cudaMalloc: 0 if there is no such memory.
  virtual std::uintptr_t malloc(std::size_t bytes) = 0;
  virtual void free(std::uintptr_t address) = 0;

  virtual void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) = 0;

  /// cudaHostRegister: memory of the host is pinned, for all devices. False if the driver refuses.
  virtual bool host_register(std::uintptr_t address, std::size_t bytes) = 0;
  virtual void host_unregister(std::uintptr_t address) = 0;

  /// Events take no times, which would make them slow.
  virtual std::uint64_t event_create() = 0;
  virtual void event_destroy(std::uint64_t event) = 0;
  virtual void event_record(std::uint64_t event, std::uint64_t stream) = 0;
  virtual bool event_query(std::uint64_t event) = 0;
  virtual void event_synchronize(std::uint64_t event) = 0;
  virtual void stream_wait(std::uint64_t stream, std::uint64_t event) = 0;

  /// A stream that does not wait for the default one.
  virtual std::uint64_t stream_create() { no_streams(); }
  virtual void stream_destroy(std::uint64_t /*stream*/) { no_streams(); }
  virtual void stream_synchronize(std::uint64_t /*stream*/) { no_streams(); }
  /// cudaStreamBeginCapture: what is queued on the stream, and on those that wait for its events, is recorded and not
  /// run. Calls that are not about streams do what they do.
  virtual void begin_capture(std::uint64_t /*stream*/) { no_streams(); }
  /// cudaStreamIsCapturing: whether what is queued on the stream now is recorded, by whomever.
  virtual bool is_captured(std::uint64_t /*stream*/) { return false; }
  /// What was recorded, as a graph that can be launched. Throws CudaError, and nothing is recorded any more, where a
  /// rule was broken meanwhile.
  virtual std::uint64_t end_capture(std::uint64_t /*stream*/) { no_streams(); }
  virtual void graph_launch(std::uint64_t /*graph*/, std::uint64_t /*stream*/) { no_streams(); }
  virtual void graph_destroy(std::uint64_t /*graph*/) { no_streams(); }

 private:
  [[noreturn]] static void no_streams();
};

/// Whether a device of compute capability major.minor can run what is compiled for one of these architectures, words of
/// CMAKE_CUDA_ARCHITECTURES: "90a-real 80-virtual". Code for a GPU runs on those of the same major number and no lower
/// minor one, of 90a on 9.0 alone; PTX on every newer one as well. Words that are no number say yes.
bool is_compiled_for(std::string_view architectures, int major, int minor);

/// Why there is no CUDA device to use: no CUDA in this build, no driver, or no device. Empty where there is one.
std::string cuda_unavailable_reason();

/// "NVIDIA H200, compute capability 9.0, 139.8 GiB, driver 12.8, runtime 13.0"; throws DeviceError as
/// make_cuda_driver().
std::string cuda_device_description(int index);

/// The driver of device `index`. Throws DeviceError with the reason where it cannot be used.
std::unique_ptr<CudaDriver> make_cuda_driver(int index);
/// Throws the DeviceError of a device that cannot be used: for this reason, or, if it is empty, since there are only
/// `count`.
[[noreturn]] void refuse_cuda_device(int index, const std::string& reason, int count);

/// Of memory that work on a device's streams may use: whose the streams are, and their events.
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
  /// An event of work that is done.
  EventId finished_event();
  /// Returns once the work is done, and spends nothing.
  void wait_for(EventId event);

 private:
  std::uint64_t event_of(EventId event) const;  // 0 if it is spent, or was done from the start
  void refuse_if_recorded(Stream stream, const char* call) const;

  const Device device_;
  const std::unique_ptr<CudaDriver> driver_;
  mutable std::mutex events_mutex_;  // never held during a call of the driver
  EventId last_event_ = 0;
  std::unordered_map<EventId, std::uint64_t> events_;  // recorded and not spent
  std::vector<std::uint64_t> unused_events_;
};

/// A GPU's memory through CUDA's virtual memory management: addresses are reserved once, and handles of physical memory
/// are mapped behind them, moved and taken away. Each commit() makes one handle; decommit() and move() take whole ones
/// (DeviceError else, which in decommit() ends the program with the sentence). A call that fails half-way is undone:
/// what it made is released, and nothing has changed. Other programs use the device too, so info() may say less than
/// was given back here.
///
/// There is no variant on cudaMalloc: its addresses cost memory and cannot be had twice, so a pool on it could neither
/// give pages back nor move them, and the GPUs that the kernels are compiled for (sm_80 and newer) have no need of it.
class CudaMemory : public CudaStreams {
 public:
  /// Throws DeviceError if the device has no virtual memory management.
  CudaMemory(int index, std::unique_ptr<CudaDriver> driver);
  /// Device cuda:`index`; throws DeviceError where it cannot be used.
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
  /// Held by all that map and unmap; alone by share_with(), which must meet every mapping, before those of `mutex_`.
  std::shared_mutex sharing_;
  std::vector<int> peers_;
  std::mutex mutex_;  // never held during a call of the driver
  MappedHandles handles_;
};

/// Memory of a device that another process has exported, or this one, for as long as it lives. It is used as any memory
/// of that device; the exporting pool does not know, so that its block must stay allocated until the work is done.
class ImportedMemory {
 public:
  /// The descriptors may be closed afterwards. Throws DeviceError, and CudaError for a descriptor that is no memory.
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

/// Memory of the host that is pinned: a device copies from it and to it while the host goes on, where of other memory
/// of the host the driver makes the copies itself, and makes its caller wait. It belongs to the streams of one device,
/// and to one more, the host's, on which blocks are had that the host reads or writes: its work is done when it is
/// called, and what it is told to wait for, the caller waits for. So a pool on it hands no block to the host that a
/// copy still uses, if CachingAllocator::use() tells it of the copy.
class PinnedMemory : public CudaStreams {
 public:
  /// Pinned in steps of it, aligned to it. A copy must not go beyond what was pinned at once: one page never does.
  static constexpr std::size_t page = std::size_t{2} << 20;
  /// The id of the host's stream.
  static constexpr std::uint64_t host_stream = std::uint64_t{1} << 51;

  /// Pins at most `total` bytes.
  PinnedMemory(int index, std::unique_ptr<CudaDriver> driver, std::size_t total);
  /// For cuda:`index`; throws DeviceError where it cannot be used. Pins at most a quarter of the machine's memory.
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
