// The process-wide pools.

#include <array>
#include <atomic>
#include <mutex>

#include "allocator/base/clock.h"
#include "allocator/base/fork.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

namespace {

constexpr std::size_t default_capacity = std::size_t{8} << 30;

// Never destroyed, so that static tensors can be released at any time; reachable, so leak checkers are content.
struct Registry {
  std::mutex mutex;
  std::array<std::atomic<CachingAllocator*>, 3 * 256> pools{};
  std::array<SimulatedMemory*, 256> simulated{};
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

std::atomic<CachingAllocator*>& slot(Device device) { return registry().pools[std::hash<Device>{}(device)]; }

// Called with the registry's mutex held.
CachingAllocator* make_pool(Device device, std::size_t simulated_capacity) {
  const AllocatorConfig config = AllocatorConfig::from_environment();
  switch (device.type) {
    case DeviceType::cpu:
      if (device.index != 0) throw DeviceError("[allocator] there is only one cpu, with index 0");
      return new CachingAllocator(std::make_unique<HostMemory>(), config);
    case DeviceType::sim: {
      auto memory = std::make_unique<SimulatedMemory>(device.index, simulated_capacity);
      SimulatedMemory* raw = memory.get();
      auto* pool = new CachingAllocator(std::move(memory), config);
      registry().simulated[device.index] = raw;
      return pool;
    }
    case DeviceType::cuda: return new CachingAllocator(std::make_unique<CudaMemory>(device.index), config);
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

CachingAllocator& allocator_for(Device device) {
  std::atomic<CachingAllocator*>& pool = slot(device);
  if (CachingAllocator* known = pool.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(registry().mutex);
  if (pool.load(std::memory_order_relaxed) == nullptr) {
    pool.store(make_pool(device, default_capacity), std::memory_order_release);
  }
  return *pool.load(std::memory_order_relaxed);
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

void configure_simulated_device(int index, std::size_t capacity) {
  if (index < 0 || index > 255) {
    throw ValueError("[configure_simulated_device] the index must be from 0 to 255, got " + std::to_string(index));
  }
  const Device device{DeviceType::sim, static_cast<std::uint8_t>(index)};
  const std::lock_guard lock(registry().mutex);
  std::atomic<CachingAllocator*>& pool = slot(device);
  if (pool.load(std::memory_order_relaxed) == nullptr) {
    pool.store(make_pool(device, capacity), std::memory_order_release);
    return;
  }
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
