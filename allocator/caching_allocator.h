// The pool: one per device. Every byte of every tensor comes from here.
//
// Memory is committed in pages inside reserved address windows and never handed back while it may be useful: freed
// blocks coalesce at once and are found again through two-level bitmap buckets (lowest address first). When no block
// fits, the emergency ladder is walked; its last rung is OutOfMemoryError with a report.
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
#include "allocator/report/snapshot.h"
#include "allocator/report/statistics.h"
#include "allocator/rung.h"
#include "allocator/stream.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

enum class AllocatorMode : std::uint8_t {
  standard,     // "default"
  lightweight,  // magazines and buckets only: no statistics by category, no hash, no trace, no placement by tag
  none,    // every allocation straight from the device, in whole pages, and back: for comparison and memory checkers
  planned  // one step is recorded, packed, and replayed at fixed offsets; what diverges is served by the pool
};

std::string_view to_string(AllocatorMode mode);

/// How a pool behaves. Also readable from text: see parse().
struct AllocatorConfig {
  /// Hard limit on reserved bytes; 0 means what the device has.
  std::size_t budget = 0;
  /// Smallest alignment of every block, in bytes (power of two).
  std::size_t alignment = 64;
  /// Overwrite memory with 0xFF (a NaN in every float type) when it is handed out and when it comes back.
  bool poison = false;
  /// In the pools of allocator_for(): a RaceDetector looks at who uses which memory; see DeviceMemory::touch().
  bool races = false;
  AllocatorMode mode = AllocatorMode::standard;
  /// Thread-local free lists in front of the pool.
  bool magazines = true;
  /// What is noted about live blocks is packed where it would take more than a 64th of what is reserved (and 64 KiB).
  /// Changes no address.
  bool packing = true;
  /// Scattered free pages may be moved behind one run of addresses, where the device can.
  bool stitch = true;
  /// Never reuse another stream's memory because its work happens to be finished, which differs from run to run.
  bool deterministic = false;
  /// Cached pages that were not used for this many allocations and frees go back to the device; 0: they stay. Looked at
  /// when memory is asked for: each time that the pool's mutex is taken, and at every 1024th hit in front of it, or
  /// after `decay` of them where that is less. So a pool that nobody asks keeps its pages, until trim().
  std::size_t decay = 0;
  /// The same for milliseconds, rounded up by a sixteenth; 0: they stay. Alone, it leaves hits as fast as they are.
  std::size_t decay_ms = 0;
  /// Record a trace from the start, with a ring of this many events per thread; 0: not.
  std::size_t trace = 0;

  /// "budget:8GiB,mode:lightweight,stitch:off,trace:100000"; unknown keys throw a ValueError that lists the known ones.
  static AllocatorConfig parse(const std::string& text);
  /// From the environment variable POOLGRAD_ALLOCATOR; defaults where it is unset.
  static AllocatorConfig from_environment();
  /// What parse() reads; only what differs from the defaults.
  std::string text() const;
};

/// What the attention factories take: no pool below segments of 4096, lightweight below 8192, the default above. A mode
/// that the user chose wins.
AllocatorMode mode_for_segments(std::int64_t largest_segment, std::optional<AllocatorMode> chosen = std::nullopt);

/// One request; everything but `bytes` has a default.
struct AllocationRequest {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  Stream stream;
  Tag tag = current_tag();
  /// Whether clients and the user's callback may be asked to give memory up for it. If not, it fails instead.
  bool may_reclaim = true;
  /// Clients whose price per byte is above it are not asked.
  double priority = std::numeric_limits<double>::infinity();
  /// Shown in traces.
  std::source_location location = std::source_location::current();
};

/// Those who hold memory that they could do without: derived caches (workspaces, tables), tensors that can be offloaded
/// or recomputed. They register with a pool and are asked when an allocation would otherwise fail.
///
/// Called without any lock of the pool held, from the thread whose allocation would fail. A call may free and allocate;
/// its own allocations never lead to clients again.
class ReclaimClient {
 public:
  virtual ~ReclaimClient() = default;
  /// Shown in the out-of-memory report.
  virtual std::string name() const = 0;
  /// RungId::derived_cache, offload or rematerialise. Derived caches are asked first; the others are merged by price.
  virtual RungId kind() const { return RungId::derived_cache; }
  /// What getting a byte back costs, in nanoseconds: 0 for a cache that is never needed again. Finite, not negative;
  /// one that stops to be is asked last.
  virtual double price_per_byte() const = 0;
  /// Bytes that reclaim() could free now, no fewer: where a request would not fit without what all clients hold, none
  /// of them is asked. Those that say 0 are asked last, for they may be wrong.
  virtual std::size_t estimate() = 0;
  /// Frees at least `bytes` if it can, as few as possible; returns the bytes really freed, which the pool counts for
  /// itself. After an exception the next client is asked; the report and Statistics::num_client_failures tell of it.
  virtual std::size_t reclaim(std::size_t bytes) = 0;
};

/// Asked after every other rung of the ladder, without locks: `bytes` are needed, for the `attempt`-th time (from 0).
/// True to try again; after 8 attempts the allocation fails whatever it says. It is not copied, and several threads may
/// call it at the same time.
using OutOfMemoryCallback = std::function<bool(std::size_t bytes, int attempt)>;

class Pool;

class CachingAllocator {
 public:
  explicit CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config = {});
  /// Waits for the work that may still use its memory and releases everything; live blocks become invalid.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  Device device() const;

  /// Same argument order as std::pmr and cuda::mr. 0 bytes give a unique non-null pointer. Throws OutOfMemoryError with
  /// the report, and ValueError for an alignment that is no power of two.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                 std::source_location location = std::source_location::current());
  /// The block, or the report that allocate() would have thrown.
  std::variant<void*, std::string> try_allocate(const AllocationRequest& request);
  /// Gives a block back. Work already queued on `stream` may still use it. A foreign pointer, a double free or wrong
  /// bytes end the program with one sentence on stderr: memory is already corrupt.
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream stream) noexcept;

  /// Bytes that may really be used at `pointer` (>= requested).
  std::size_t usable_size(const void* pointer) const;
  /// Makes a live block of `bytes` one of `wanted` bytes without moving it, growing into free neighbours or giving the
  /// rest back. False, changing nothing, if there is no room. deallocate() then takes `wanted`.
  bool expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream);

  /// `stream` uses the live block too, beside the stream it was allocated on: once given back, it is not reused before
  /// what is queued on both by then is done. order(its own stream, `stream`) ends the uses so far, and what `stream`
  /// queues after that is waited for only if it is told of anew. A race detector hears of it.
  void use(void* pointer, Stream stream, Access access = Access::reads,
           std::source_location location = std::source_location::current());
  /// The live block is `stream`'s from now on, as if it had been given back and was handed out anew: what is queued on
  /// the stream from now on waits for what is queued now where use() has told of, and on the block's former stream.
  /// False, with the block as it was, where the device refuses to wait, as for a stream that is being recorded.
  bool hand_on(void* pointer, Stream stream);
  /// Work queued on `later` from now on waits for what is queued on `earlier` now. Through this the pool learns which
  /// streams may take each other's blocks without waiting.
  void order(Stream later, Stream earlier);
  /// The stream will be destroyed and its name may be used again. Its blocks can be taken by all others once its work
  /// is done. Allocating on the name, use() and order() make it a new stream, and so does giving back a block of a
  /// stream that still exists; a block that outlives its stream may be given back under the old name. If it throws, the
  /// stream is as before.
  void stream_destroyed(Stream stream);
  /// Returns cached pages to the device, least recently used first, until `bytes` are released or none is left.
  /// Returns the bytes released. trim() releases all, and empties derived caches first. What the pool keeps account
  /// with and does not need now goes back to the program's heap in any case.
  std::size_t trim(std::size_t bytes = SIZE_MAX);
  /// A new hard limit on reserved bytes (0: what the device has). Trims down to it; throws ValueError, changing
  /// nothing, if live memory alone is above it.
  void set_budget(std::size_t bytes);
  std::size_t budget() const;

  Statistics statistics() const;
  /// Peaks restart from the present values.
  void reset_peaks();
  /// Bytes of blocks in use, or waiting for another stream. Cheaper than statistics().
  std::uint64_t active_bytes() const;
  /// FNV-1a, 64 bits at a time, over (kind, bytes, category) of all requests and frees so far: equal hashes, equal
  /// allocation sequences. Blocks are numbered by allocation order, so the hash is independent of addresses. Scratch of
  /// kernels (Category::workspace) is left out: it differs with the back end and the number of threads, tensors do not.
  std::uint64_t sequence_hash() const;
  void reset_sequence_hash();

  /// Whether the address is one of the pool's, live or not.
  bool owns(const void* pointer) const noexcept;
  /// Every block of every address window, window by window in address order.
  std::vector<BlockSnapshot> snapshot() const;

  /// From now on the client is asked for memory when nothing cheaper helps, cheapest client first, until it expires.
  /// Throws ValueError for one that is null or gone, and for a price or a kind that is none.
  void add_client(std::weak_ptr<ReclaimClient> client);
  void set_out_of_memory_callback(OutOfMemoryCallback callback);

  /// Records what happens from now on: a ring of `events` per thread, of which the newest remain.
  void start_trace(std::size_t events = std::size_t{1} << 20);
  void stop_trace();
  bool tracing() const;
  /// What has been recorded so far, with all blocks as they are now. Recording goes on.
  Trace trace() const;

  /// Starts a phase of the program that may come again, such as a validation. On divisible memory (the host) the live
  /// blocks alone then decide the places of the phase's blocks: a phase of one thread that fits once fits whenever
  /// these blocks are the same. A thread that uses the pool alone has no magazines from now on. Once the budget has
  /// refused or shortened a request, all cached pages of divisible memory go back to the device.
  void begin_phase();
  /// A training step starts. It is a phase, and a mark in traces; in mode `planned` the pool records and replays it.
  void begin_step();

  const AllocatorConfig& config() const;
  DeviceMemory& memory();

 private:
  friend void configure_simulated_device(int index, std::size_t capacity, std::string_view like);
  std::unique_ptr<Pool> pool_;
};

/// The process-wide pool of a device, made at first use with AllocatorConfig::from_environment(). Throws DeviceError
/// for a device that does not exist (a CUDA device in a build without CUDA; a sim device that was never configured gets
/// the default capacity of 8 GiB). In a thread that records a step (StreamCapture): the recording's own pool.
CachingAllocator& allocator_for(Device device);

/// The process-wide pool of pinned memory of the host for copies from and to a CUDA device, made at first use: see
/// PinnedMemory. Throws DeviceError for a device that does not exist, or is none of CUDA.
CachingAllocator& pinned_allocator_for(Device device);

/// The process-wide pools of devices of this kind that have been made so far.
std::vector<CachingAllocator*> allocators_of(DeviceType type);
/// The one of them that has `pointer` among its addresses; nullptr if none has.
CachingAllocator* owner_of(DeviceType type, const void* pointer);

/// Creates sim:index with `capacity` bytes, or gives it that many. `like` says whose pages it has, and cannot change
/// later: "" those of a GPU, "cpu" the machine's, so that a pool reserves to the byte what it would there. Kernels ask
/// it for the scratch that they need on this machine's CPU. Throws ValueError if that device already has live memory.
void configure_simulated_device(int index, std::size_t capacity, std::string_view like = "");

/// "8GiB", "512MiB", "1.5GB", "4096" -> bytes. Throws ValueError that shows the text.
std::size_t parse_bytes(const std::string& text);
/// 1536 -> "1.50 KiB".
std::string format_bytes(std::size_t bytes);

}  // namespace poolgrad
