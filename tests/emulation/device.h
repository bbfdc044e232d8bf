// An emulated GPU: memory, streams and events of a device cuda:N, made of the host's. It implements CudaDriver, so
// CudaMemory and the pool run on it as on a GPU; launches queue kernels on it. All devices share one scheduler of
// deferred work, so that a stream of one can wait for an event of another.
//
// Environment variables: POOLGRAD_EMULATED_DEVICES, the number of devices (1); POOLGRAD_EMULATED_MEMORY, bytes of each
// (4GiB); POOLGRAD_EMULATED_SEED, the seed of the execution order (0).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory/cuda_memory.h"
#include "tests/emulation/streams.h"

namespace poolgrad::emulation {

/// The kernel that this thread runs, for error reports; without an operator: none.
struct Activity {
  const char* op = nullptr;
  std::int64_t block = 0, thread = 0;
};
extern thread_local Activity activity;
/// The current device of this thread, set by CudaDriver::with_current(); -1: none.
extern thread_local int current;

class Device;

/// State shared by the devices of a machine.
struct Schedule {
  explicit Schedule(std::uint64_t seed) : seeds(seed), streams(seeds()) {}

  /// Makes the memory of both devices accessible to work, and memory of other devices that gave the first one access.
  /// Requires the mutex.
  void open(const Device* one, const Device* other);

  std::mutex mutex;  // guards the state of all devices
  std::mt19937_64 seeds;
  Streams streams;  // of all devices, named by Device::key()
  std::vector<Device*> devices;
};

/// Handles are ranges of a memory file, poisoned (all bits set) when created; mappings map that file. Mapped memory is
/// accessible only while the device runs work. The program ends on a host access to device memory and on a kernel
/// access to an unmapped address. The message names the operator, the block and the thread. Host memory is pageable
/// unless registered. All calls are thread-safe.
class Device {
 public:
  static constexpr std::size_t page = std::size_t{2} << 20;

  Device(int index, std::size_t capacity, std::shared_ptr<Schedule> schedule);
  /// A machine with a single device.
  Device(int index, std::size_t capacity, std::uint64_t seed)
      : Device(index, capacity, std::make_shared<Schedule>(seed)) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Work. `op` must live as long as the program. take_failure() reports an exception of the work.
  /// Queues work, which may use the memory of this device and of one other.
  void enqueue(const char* op, std::uint64_t stream, Streams::Work work, const Device* other = nullptr);
  /// Makes later work on `stream` wait for the work queued now on a stream of `other`, on the same machine.
  void wait(std::uint64_t stream, const Device& other, std::uint64_t earlier);
  /// As Streams::hold(); the second function ends a hold by setting it to true, while no work runs.
  std::shared_ptr<bool> hold(std::uint64_t stream);
  void let_go(bool& held);
  /// Copies like cudaMemcpyAsync between device and host memory. A copy of pageable memory completes before this
  /// returns; a copy of registered memory runs in stream order.
  void copy(std::uint64_t stream, void* to, const void* from, std::size_t bytes);
  /// The number of copies from device to host.
  std::uint64_t copies_to_host() const { return copies_to_host_.load(std::memory_order_relaxed); }
  /// Waits for all work of the stream. Throws CudaError if work of any stream has failed, and, named after `call`, if
  /// the wait depends on a held or recorded stream.
  void synchronize(std::uint64_t stream, const char* call = "synchronize");
  /// Whether the stream is being recorded instead of run.
  bool is_recorded(std::uint64_t stream) const;
  /// Throws the first unreported failure, as the next launch on a GPU would, and clears it.
  void take_failure();
  std::uint64_t next_seed();
  int index() const { return index_; }

  /// Whether the address belongs to the device.
  bool owns(const void* address) const;
  /// Whether device `index` has been granted access to this device's memory at the address.
  bool is_open_to(int index, const void* address) const;
  /// Whether this host memory is registered with the device (pinned). Throws CudaError for a partly registered range,
  /// or one registered by two calls.
  bool has_registered(const void* address, std::size_t bytes) const;
  /// The driver of this device, which must outlive it.
  std::unique_ptr<CudaDriver> driver();

 private:
  friend class Driver;
  /// A range of a file: the device's own, or another's if imported.
  struct Handle {
    int file;
    std::size_t offset, bytes;
    bool exported;
  };
  struct Mapping {
    std::size_t bytes;
    std::uint64_t handle;
    std::set<int> users;  // devices that have access
  };
  struct Reservation {
    std::size_t bytes;
    void* mapped;
    std::size_t mapped_bytes;
  };

  friend struct Schedule;

  /// The scheduler's name for a stream of this device: ids are below 2^52, or per_thread_stream. Throws CudaError for a
  /// destroyed stream.
  std::uint64_t key(std::uint64_t stream) const;
  bool is_per_thread(std::uint64_t key) const;
  /// An event's name: the scheduler's number, tagged with the device.
  std::uint64_t named(std::uint64_t event) const;
  // All require the mutex.
  void open(int user);
  /// Calls `run`; if it runs work, memory is accessible until it returns.
  template <class Run>
  auto working(const Run& run);
  const Mapping* mapping_at(std::uintptr_t address) const;

  const int index_;
  const std::size_t capacity_;
  const int file_;
  const std::shared_ptr<Schedule> schedule_;
  std::mutex& mutex_;  // the machine's
  Streams& streams_;
  static constexpr std::uint64_t first_own_stream = std::uint64_t{1} << 40;  // for stream_create()
  static constexpr int nobody = -1;
  int user_ = nobody;  // the device that last ran work and can access memory
  std::string failure_;
  std::atomic<std::uint64_t> copies_to_host_{0};
  std::size_t end_of_file_ = 0, committed_ = 0;
  std::uint64_t last_handle_ = 0;  // 0 is none
  std::map<std::uint64_t, Handle> handles_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Reservation> reserved_;
  std::map<std::uintptr_t, std::size_t> registered_;  // host memory; bytes by address
  std::uint64_t last_stream_ = first_own_stream;
  std::set<std::uint64_t> made_streams_;  // not yet destroyed
  std::map<std::uint64_t, std::shared_ptr<const Streams::Recording>> graphs_;
  std::uint64_t last_graph_ = 0;
};

/// The number of emulated devices.
int device_count();
/// The program's device cuda:index, made at first use. Throws DeviceError if it does not exist.
Device& device(int index);
/// Whether the device has been used: on a GPU it would have a context, of some 500 MiB.
bool is_in_use(int index);
/// The device that owns the address; nullptr for host memory.
Device* owner_of(const void* address);

}  // namespace poolgrad::emulation
