// An emulated GPU: memory, streams and events of a device cuda:N that is made of the host's. It answers the calls of
// CudaDriver, so CudaMemory and the pool run on it as on a GPU; kernels are queued on it by kernels/cuda/emulation.
// Several devices have one scheduler of late work, so that a stream of one can wait for an event of another.
//
// It is in programs that are linked with the target poolgrad_emulated, and in all where POOLGRAD_CUDA=EMULATED.
// POOLGRAD_EMULATED_DEVICES says how many there are (1), POOLGRAD_EMULATED_MEMORY how many bytes each has (4GiB),
// POOLGRAD_EMULATED_SEED in which of the orders that are allowed things happen (0).
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

#include "allocator/emulation/streams.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad::emulation {

/// The kernel that this thread runs, for reports; no operator: none.
struct Activity {
  const char* op = nullptr;
  std::int64_t block = 0, thread = 0;
};
extern thread_local Activity activity;
/// The device that CudaDriver::with_current() has made current in this thread; -1: none.
extern thread_local int current;

class Device;

/// What the devices of a machine have in common.
struct Schedule {
  explicit Schedule(std::uint64_t seed) : seeds(seed), streams(seeds()) {}

  /// With the mutex held: work can use the memory of these two, and what other devices have given the first access to.
  void open(const Device* one, const Device* other);

  std::mutex mutex;  // of all that devices know
  std::mt19937_64 seeds;
  Streams streams;  // of all devices, see Device::key()
  std::vector<Device*> devices;
};

/// Handles of memory are ranges of a file in memory, poisoned (all bits set) when they are made, and mappings are
/// mappings of it, which can be read and written only while the device works: a host that touches memory of the device,
/// or a kernel that touches addresses with nothing behind them, ends the program with a sentence that names the
/// operator, the block and the thread. Memory of the host is pageable unless it is registered. Calls may be made from
/// any thread.
class Device {
 public:
  static constexpr std::size_t page = std::size_t{2} << 20;

  Device(int index, std::size_t capacity, std::shared_ptr<Schedule> schedule);
  /// A machine with this device only.
  Device(int index, std::size_t capacity, std::uint64_t seed)
      : Device(index, capacity, std::make_shared<Schedule>(seed)) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Work. `op` must live for as long as the program. An exception of the work is kept: see take_failure().
  /// Work may use the memory of the device, and of one other.
  void enqueue(const char* op, std::uint64_t stream, Streams::Work work, const Device* other = nullptr);
  /// Work queued on `stream` from now on waits for what is queued on a stream of `other`, of the same machine, now.
  void wait(std::uint64_t stream, const Device& other, std::uint64_t earlier);
  /// Streams::hold(), and what ends it: true, with the machine at rest.
  std::shared_ptr<bool> hold(std::uint64_t stream);
  void let_go(bool& held);
  /// A copy of bytes, as cudaMemcpyAsync: memory of the device, or of the host, on either side. What is pageable has
  /// been read, or written, when this returns; what is registered is read, or written, in stream order.
  void copy(std::uint64_t stream, void* to, const void* from, std::size_t bytes);
  /// How many copies have gone from memory of the device to the host's.
  std::uint64_t copies_to_host() const { return copies_to_host_.load(std::memory_order_relaxed); }
  /// Returns once all work of the stream is done; throws CudaError if any work has failed, of whichever stream. `call`
  /// is whose error it is where that waits for a stream which is held or recorded.
  void synchronize(std::uint64_t stream, const char* call = "synchronize");
  /// Whether what is queued on the stream now is recorded, and not run.
  bool is_recorded(std::uint64_t stream) const;
  /// Throws the first failure that nobody has heard of, as the next launch on a GPU would, and forgets it.
  void take_failure();
  std::uint64_t next_seed();
  int index() const { return index_; }

  /// Whether the address is one of the device's.
  bool owns(const void* address) const;
  /// Whether work of device `index` has been given access to what is at the address of this one.
  bool is_open_to(int index, const void* address) const;
  /// Whether this memory of the host is registered with the device (pinned). Throws CudaError for a part that is and
  /// one that is not, or that was registered by another call.
  bool has_registered(const void* address, std::size_t bytes) const;
  /// The driver of this device, which must outlive it.
  std::unique_ptr<CudaDriver> driver();

 private:
  friend class Driver;
  /// A part of a file: the device's own, or, of what was imported, another's.
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

  /// The name that the scheduler has for a stream of this device: ids are below 2^52, or per_thread_stream. Throws
  /// CudaError for a stream that is destroyed.
  std::uint64_t key(std::uint64_t stream) const;
  bool is_per_thread(std::uint64_t key) const;
  /// Names of events are the scheduler's, and of which device they are.
  std::uint64_t named(std::uint64_t event) const;
  // All with the mutex held.
  void open(int user);
  /// Calls `run`; if it runs work, memory is open until it returns.
  template <class Run>
  auto working(const Run& run);
  const Mapping* mapping_at(std::uintptr_t address) const;

  const int index_;
  const std::size_t capacity_;
  const int file_;
  const std::shared_ptr<Schedule> schedule_;
  std::mutex& mutex_;  // the machine's
  Streams& streams_;
  static constexpr std::uint64_t first_own_stream = std::uint64_t{1} << 40;  // of those that stream_create() makes
  static constexpr int nobody = -1;
  int user_ = nobody;  // the device whose work has run, and can use memory
  std::string failure_;
  std::atomic<std::uint64_t> copies_to_host_{0};
  std::size_t end_of_file_ = 0, committed_ = 0;
  std::uint64_t last_handle_ = 0;  // 0 is none
  std::map<std::uint64_t, Handle> handles_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Reservation> reserved_;
  std::map<std::uintptr_t, std::size_t> registered_;  // memory of the host; bytes by address
  std::uint64_t last_stream_ = first_own_stream;
  std::set<std::uint64_t> made_streams_;  // those that are there
  std::map<std::uint64_t, std::shared_ptr<const Streams::Recording>> graphs_;
  std::uint64_t last_graph_ = 0;
};

/// How many there are.
int device_count();
/// The program's device cuda:index, made at first use. Throws DeviceError where there is none.
Device& device(int index);
/// Whether that device has been used: on a GPU, it has a context, of some 500 MiB.
bool is_in_use(int index);
/// The one of them that the address belongs to; nullptr if it is the host's.
Device* owner_of(const void* address);

}  // namespace poolgrad::emulation
