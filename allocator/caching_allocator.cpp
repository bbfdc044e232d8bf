#include "allocator/caching_allocator.h"

#include <array>
#include <atomic>
#include <mutex>

#include "allocator/base/fork.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/race_detector.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/memory/stream_capture.h"
#include "allocator/pool/pool.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

CachingAllocator::CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config)
    : pool_(std::make_unique<Pool>(std::move(memory), config)) {}

CachingAllocator::~CachingAllocator() = default;

Device CachingAllocator::device() const { return pool_->settings().device; }

std::size_t CachingAllocator::usable_size(const void* pointer) const { return pool_->usable_size(pointer); }

bool CachingAllocator::expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  return pool_->expand_in_place(pointer, bytes, wanted, ThreadCacheTable::named(stream));
}

void CachingAllocator::use(void* pointer, Stream stream, Access access, std::source_location location) {
  pool_->use(pointer, ThreadCacheTable::named(stream), access, location);
}

bool CachingAllocator::transfer_to_stream(void* pointer, Stream stream) {
  return pool_->transfer_to_stream(pointer, ThreadCacheTable::named(stream));
}

void CachingAllocator::order(Stream later, Stream earlier) {
  pool_->order(ThreadCacheTable::named(later), ThreadCacheTable::named(earlier));
}

void CachingAllocator::stream_destroyed(Stream stream) { pool_->stream_destroyed(ThreadCacheTable::named(stream)); }

std::size_t CachingAllocator::trim(std::size_t bytes) { return pool_->trim(bytes); }

void CachingAllocator::set_budget(std::size_t bytes) { pool_->set_budget(bytes); }

std::size_t CachingAllocator::budget() const { return pool_->budget(); }

Statistics CachingAllocator::statistics() const { return pool_->inspector().statistics(); }

std::uint64_t CachingAllocator::active_bytes() const { return pool_->inspector().active_bytes(); }
void CachingAllocator::reset_peaks() { pool_->inspector().reset_peaks(); }

std::uint64_t CachingAllocator::sequence_hash() const { return pool_->inspector().sequence_hash(); }

void CachingAllocator::reset_sequence_hash() { pool_->inspector().reset_sequence_hash(); }

bool CachingAllocator::owns(const void* pointer) const noexcept { return pool_->owns(pointer); }

std::vector<BlockSnapshot> CachingAllocator::snapshot() const { return pool_->inspector().snapshot(); }

void CachingAllocator::add_client(std::weak_ptr<ReclaimClient> client) {
  pool_->reclaim_policy().add_client(std::move(client));
}

void CachingAllocator::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  pool_->reclaim_policy().set_callback(std::move(callback));
}

void CachingAllocator::start_trace(std::size_t events) { pool_->inspector().start_trace(events); }

void CachingAllocator::stop_trace() { pool_->inspector().stop_trace(); }

bool CachingAllocator::tracing() const { return pool_->inspector().tracing(); }

Trace CachingAllocator::trace() const { return pool_->inspector().trace(); }

void CachingAllocator::begin_phase() { pool_->begin_phase(); }

void CachingAllocator::begin_step() { pool_->begin_step(); }

const AllocatorConfig& CachingAllocator::config() const { return pool_->settings().config; }

DeviceMemory& CachingAllocator::memory() { return pool_->memory(); }

// The process-wide pools.

namespace {

constexpr std::size_t default_capacity = std::size_t{8} << 30;

// Never destroyed, so that static tensors can be released at any time. Reachable, so leak checkers do not report it.
struct Registry {
  std::mutex mutex;
  std::array<std::atomic<CachingAllocator*>, 3 * 256> pools{};
  std::array<std::atomic<CachingAllocator*>, 256> pinned{};
  std::array<SimulatedMemory*, 256> simulated{};
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

std::atomic<CachingAllocator*>& slot(Device device) { return registry().pools[std::hash<Device>{}(device)]; }

CachingAllocator* pool_on(std::unique_ptr<DeviceMemory> memory, const AllocatorConfig& config) {
  if (config.races) memory = std::make_unique<RaceDetector>(std::move(memory));
  return new CachingAllocator(std::move(memory), config);
}

// Requires the registry's mutex.
CachingAllocator* make_pool(Device device, std::size_t simulated_capacity, const SimulationOptions& simulation = {}) {
  const AllocatorConfig config = AllocatorConfig::from_environment();
  switch (device.type) {
    case DeviceType::cpu:
      if (device.index != 0) throw DeviceError("[allocator] there is only one cpu, with index 0");
      return pool_on(std::make_unique<HostMemory>(), config);
    case DeviceType::sim: {
      auto memory = std::make_unique<SimulatedMemory>(device.index, simulated_capacity, simulation);
      SimulatedMemory* raw = memory.get();
      CachingAllocator* pool = pool_on(std::move(memory), config);
      registry().simulated[device.index] = raw;
      return pool;
    }
    case DeviceType::cuda: return pool_on(std::make_unique<CudaMemory>(device.index), config);
  }
  throw DeviceError("[allocator] unknown kind of device");
}

SimulatedMemory& simulated_memory(Device device, const char* function) {
  if (!device.is_sim()) {
    throw DeviceError("[" + std::string(function) + "] only simulated devices have a virtual clock, got " +
                      to_string(device));
  }
  allocator_for(device);
  return *registry().simulated[device.index];
}

}  // namespace

std::mutex& registry_mutex() { return registry().mutex; }

namespace {

// Returns the pool in the slot; makes it at first use.
template <class Make>
CachingAllocator& known_or_made(std::atomic<CachingAllocator*>& pool, const Make& make) {
  if (CachingAllocator* known = pool.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(registry().mutex);
  if (pool.load(std::memory_order_relaxed) == nullptr) pool.store(make(), std::memory_order_release);
  return *pool.load(std::memory_order_relaxed);
}

}  // namespace

CachingAllocator& allocator_for(Device device) {
  if (const StreamCapture* const capture = thread_state.capture; capture != nullptr && capture->device() == device)
      [[unlikely]]
    return capture->pool();
  return known_or_made(slot(device), [&] { return make_pool(device, default_capacity); });
}

CachingAllocator& pinned_allocator_for(Device device) {
  if (!device.is_cuda())
    throw DeviceError("[allocator] memory of the host is pinned for CUDA devices, got " + to_string(device));
  return known_or_made(registry().pinned[device.index], [&] {
    AllocatorConfig config = AllocatorConfig::from_environment();
    config.budget = 0;     // the device has its own
    config.races = false;  // host work ends before the host queues device work, without an event
    return pool_on(std::make_unique<PinnedMemory>(device.index), config);
  });
}

std::vector<CachingAllocator*> allocators_of(DeviceType type) {
  std::vector<CachingAllocator*> pools;
  for (int index = 0; index < 256; ++index) {
    CachingAllocator* pool = slot({type, static_cast<std::uint8_t>(index)}).load(std::memory_order_acquire);
    if (pool != nullptr) pools.push_back(pool);
  }
  return pools;
}

CachingAllocator* owner_of(DeviceType type, const void* pointer) {
  for (CachingAllocator* pool : allocators_of(type)) {
    if (pool->owns(pointer)) return pool;
  }
  return nullptr;
}

void configure_simulated_device(int index, std::size_t capacity, std::string_view like) {
  if (index < 0 || index > 255) {
    throw ValueError("[configure_simulated_device] the index must be from 0 to 255, got " + std::to_string(index));
  }
  const Device device{DeviceType::sim, static_cast<std::uint8_t>(index)};
  const SimulationOptions options = SimulationOptions::like(like);
  const std::lock_guard lock(registry().mutex);
  std::atomic<CachingAllocator*>& pool = slot(device);
  if (pool.load(std::memory_order_relaxed) == nullptr) {
    pool.store(make_pool(device, capacity, options), std::memory_order_release);
    return;
  }
  if (const std::size_t pages = registry().simulated[device.index]->granularity(); pages != options.granularity)
    throw ValueError("[configure_simulated_device] " + to_string(device) + " has pages of " + format_bytes(pages) +
                     ", and cannot change them to pages of " + format_bytes(options.granularity));
  const std::size_t budget = AllocatorConfig::from_environment().budget;
  if (!pool.load(std::memory_order_relaxed)->pool_->restart(budget != 0 ? budget : capacity)) {
    throw ValueError("[configure_simulated_device] " + to_string(device) + " has live memory");
  }
  registry().simulated[device.index]->set_capacity(capacity);
}

void advance_clock(Device device, std::uint64_t nanoseconds) {
  simulated_memory(device, "advance_clock").advance(nanoseconds);
}

std::uint64_t device_clock(Device device) { return simulated_memory(device, "device_clock").now(); }

}  // namespace poolgrad
