// The caching allocator: one pool per device, for all tensor memory.
//
// A pool commits pages inside reserved address windows and keeps them while they may be useful. Freed blocks coalesce
// at once. Two-level bitmap buckets find them again, lowest address first. If no block fits, the request goes through
// the reclaim policy, which ends with an OutOfMemoryError and a report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "allocator/device.h"
#include "allocator/memory/device_memory.h"
#include "allocator/memory_scope.h"
#include "allocator/reclaim_stage.h"
#include "allocator/report/snapshot.h"
#include "allocator/report/statistics.h"
#include "allocator/stream.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

enum class AllocatorMode : std::uint8_t {
  standard,     // "default"
  lightweight,  // magazines and buckets only: no statistics by category, no hash, no trace, no placement by tag
  none,         // every allocation directly from the device, in whole pages: for comparison and memory checkers
  planned       // records a step, packs it and replays it at fixed offsets; the pool serves other requests
};

std::string_view to_string(AllocatorMode mode);

/// Configuration of a pool. parse() reads it from text.
struct AllocatorConfig {
  /// Hard limit on reserved bytes; 0: the capacity of the device.
  std::size_t budget = 0;
  /// Smallest alignment of every block, in bytes (power of two).
  std::size_t alignment = 64;
  /// Fill memory with 0xFF (a NaN in every float type) on allocation and on free.
  bool poison = false;
  /// In the pools of allocator_for(): a RaceDetector checks accesses to memory; see DeviceMemory::touch().
  bool races = false;
  AllocatorMode mode = AllocatorMode::standard;
  /// Thread-local free lists.
  bool magazines = true;
  /// If new pages are unavailable, map scattered free pages to one range of addresses, if the device supports it.
  bool stitch = true;
  /// Stitch even if new pages are available, while more than 64 MiB and a 32nd of the reserved bytes are idle. Uses
  /// less memory after fragmentation, at the price of more device calls.
  bool stitch_idle = false;
  /// Never reuse another stream's memory because its work happens to be finished, which differs between runs.
  bool deterministic = false;
  /// Release cached pages that were not used for this many allocations and frees; 0: keep them. The pool checks
  /// whenever it takes its mutex, and at every 1024th cache hit, or every `decay` hits if that is less. An idle pool
  /// keeps its pages until trim().
  std::size_t decay = 0;
  /// The same in milliseconds, rounded up by a sixteenth; 0: keep them. Does not slow cache hits if `decay` is 0.
  std::size_t decay_ms = 0;
  /// Record a trace from the start, in a ring of this many events per thread; 0: no trace.
  std::size_t trace = 0;

  /// Parses "budget:8GiB,mode:lightweight,stitch:off,trace:100000". Throws ValueError that lists the known keys.
  static AllocatorConfig parse(const std::string& text);
  /// Parses the environment variable POOLGRAD_ALLOCATOR; defaults if it is unset.
  static AllocatorConfig from_environment();
  /// The inverse of parse(); only values that differ from the defaults.
  std::string text() const;
};

/// One request. Only `bytes` has no default.
struct AllocationRequest {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  Stream stream;
  Tag tag = current_tag();
  /// Whether the pool may ask clients and the user's callback to free memory; if not, the request fails instead.
  bool may_reclaim = true;
  /// The pool skips clients with a higher price per byte.
  double priority = std::numeric_limits<double>::infinity();
  /// Shown in traces.
  std::source_location location = std::source_location::current();
};

/// An owner of memory that can be freed on demand: derived caches (workspaces, tables), tensors that can be offloaded
/// or recomputed. Clients register with a pool, which asks them before an allocation fails.
///
/// The pool calls a client without any lock of the pool, from the thread whose allocation would fail. A client may free
/// and allocate; its own allocations never ask clients.
class ReclaimClient {
 public:
  virtual ~ReclaimClient() = default;
  /// Name in the out-of-memory report.
  virtual std::string name() const = 0;
  /// ReclaimStageId::derived_cache, offload or rematerialise. The pool asks derived caches first, then the others by
  /// price.
  virtual ReclaimStageId kind() const { return ReclaimStageId::derived_cache; }
  /// The cost of restoring a byte, in nanoseconds; 0 for a cache that is never needed again. Finite and not negative; a
  /// client that returns another value is asked last.
  virtual double price_per_byte() const = 0;
  /// A lower bound of the bytes that reclaim() can free now. If the estimates of all clients cannot make the request
  /// fit, the pool asks none of them. Clients that return 0 are asked last.
  virtual std::size_t estimate() = 0;
  /// Frees at least `bytes` if it can, as few as possible. Returns the bytes freed; the pool also counts them itself.
  /// After an exception the pool asks the next client, and records the failure in the report and
  /// Statistics::num_client_failures.
  virtual std::size_t reclaim(std::size_t bytes) = 0;
};

/// Called after all other stages of the reclaim policy, without locks: `bytes` are needed, for the `attempt`-th time
/// (from 0). Returns true to try again; after 8 attempts the allocation fails in any case. The pool does not copy it,
/// and several threads may call it at once.
using OutOfMemoryCallback = std::function<bool(std::size_t bytes, int attempt)>;

class Pool;

class CachingAllocator {
 public:
  explicit CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config = {});
  /// Waits for the work that may still use its memory and releases all pages; live blocks become invalid.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const;

  /// Same argument order as std::pmr and cuda::mr. 0 bytes return a unique non-null pointer. Throws OutOfMemoryError
  /// with the report, and ValueError for an alignment that is not a power of two.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                 std::source_location location = std::source_location::current());
  /// Returns the block, or the report of allocate()'s OutOfMemoryError.
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request);
  /// Frees a block. Work already queued on `stream` may still use it. A foreign pointer, a double free or wrong `bytes`
  /// ends the program with a message on stderr: memory is already corrupt.
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) noexcept;

  /// Usable bytes at `pointer` (>= requested).
  std::size_t usable_size(const void* pointer) const;
  /// Resizes a live block from `bytes` to `wanted` bytes in place: grows into free neighbors or frees the rest. Returns
  /// false, changing nothing, if there is no room. deallocate() then takes `wanted`.
  bool expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);

  /// Records that `stream` uses the live block too. Once freed, the block is not reused before the work queued on both
  /// streams by then is done. order(its own stream, `stream`) ends the recorded uses; later uses need another call. A
  /// race detector checks the access.
  void use(void* pointer, Stream stream, Access access = Access::reads,
           std::source_location location = std::source_location::current());
  /// Moves the live block to `stream`, as if it were freed and allocated again: later work on `stream` waits for the
  /// work queued now on the block's former stream and on the streams that use() recorded. Returns false, changing
  /// nothing, if the device refuses to wait, as for a stream under capture.
  bool transfer_to_stream(void* pointer, Stream stream);
  /// Records that later work on `later` waits for the work queued on `earlier` now. Tells the pool which streams may
  /// reuse each other's blocks without waiting.
  void order(Stream later, Stream earlier);
  /// Records that the stream will be destroyed and its id may be reused. Once its work is done, all other streams may
  /// take its blocks. A later allocation on the id, use() or order() makes it a new stream. So does a free of a block
  /// of an existing stream. A block that outlives its stream may be freed under the old id. If this throws, the stream
  /// is unchanged.
  void stream_destroyed(Stream stream);
  /// Releases cached pages to the device, least recently used first, until `bytes` are released or none is left.
  /// Returns the bytes released. trim() releases all and empties derived caches first. Always returns unused
  /// bookkeeping memory to the heap.
  std::size_t trim(std::size_t bytes = SIZE_MAX);
  /// Sets the hard limit on reserved bytes (0: the capacity of the device). Trims down to it. Throws ValueError,
  /// changing nothing, if live memory alone exceeds it.
  void set_budget(std::size_t bytes);
  std::size_t budget() const;

  Statistics statistics() const;
  /// Resets the peaks to the current values.
  void reset_peaks();
  /// Bytes of live and pending blocks. Cheaper than statistics().
  std::uint64_t active_bytes() const;
  /// FNV-1a, 64 bits at a time, over (kind, bytes, category) of all requests and frees so far: equal hashes mean equal
  /// allocation sequences. Numbers blocks by allocation order, so addresses do not matter. Leaves out kernel scratch
  /// (Category::workspace), which depends on the back end and the number of threads.
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();

  /// Whether the pool owns the address, live or not.
  bool owns(const void* pointer) const noexcept;
  /// All blocks of all address windows, in address order within a window.
  std::vector<BlockSnapshot> snapshot() const;

  /// Registers a client until it expires. The pool asks clients for memory when nothing cheaper helps, cheapest first.
  /// Throws ValueError for a null or expired client, and for an invalid price or kind.
  void add_client(std::weak_ptr<ReclaimClient> client);
  void set_out_of_memory_callback(OutOfMemoryCallback callback);

  /// Starts to record: a ring of `events` per thread keeps the newest.
  void start_trace(std::size_t events = std::size_t{1} << 20);
  void stop_trace();
  bool tracing() const;
  /// The trace so far, with the current state of all blocks. Recording goes on.
  Trace trace() const;

  /// Starts a phase of the program that may repeat, such as a validation. On divisible memory (the host), the live
  /// blocks alone then determine the addresses of the phase's blocks: a phase of one thread that fits once fits
  /// whenever the live blocks are the same. A thread that uses the pool alone stops using magazines. Once the budget
  /// has refused or shortened a request, all cached pages of divisible memory are released.
  void begin_phase();
  /// Starts a training step: a phase, and a mark in traces. In mode `planned` the pool records and replays steps.
  void begin_step();

  const AllocatorConfig& config() const;
  DeviceMemory& memory();

 private:
  friend void configure_simulated_device(int index, std::size_t capacity, std::string_view like);
  std::unique_ptr<Pool> pool_;
};

/// The process-wide pool of a device, made at first use with AllocatorConfig::from_environment(). Throws DeviceError
/// for a device that does not exist (a CUDA device in a build without CUDA). A sim device that was never configured
/// gets 8 GiB. In a thread that records a step (StreamCapture), returns the recording's own pool.
CachingAllocator& allocator_for(Device device);

/// The process-wide pool of pinned host memory for copies from and to a CUDA device, made at first use: see
/// PinnedMemory. Throws DeviceError for a device that does not exist or is not a CUDA device.
CachingAllocator& pinned_allocator_for(Device device);

/// The existing process-wide pools for devices of this type.
std::vector<CachingAllocator*> allocators_of(DeviceType type);
/// The pool of that type that owns `pointer`; nullptr if none does.
CachingAllocator* owner_of(DeviceType type, const void* pointer);

/// Creates sim:index with `capacity` bytes, or changes its capacity. `like` selects the page size, and cannot change
/// later: "" for GPU pages, "cpu" for this machine's, so that a pool reserves exactly the bytes of a CPU pool. Kernels
/// report the scratch of this machine's CPU to it. Throws ValueError if the device already has live memory.
void configure_simulated_device(int index, std::size_t capacity, std::string_view like = "");

/// Parses "8GiB", "512MiB", "1.5GB", "4096". Throws ValueError that shows the text.
std::size_t parse_bytes(const std::string& text);
/// Formats 1536 as "1.50 KiB".
std::string format_bytes(std::size_t bytes);

}  // namespace poolgrad
