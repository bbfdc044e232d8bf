// device_check facts|latency|pool [cuda:N | sim:N | cpu]: what a device is; what each call to the driver of an idle GPU
// costs, as a latency table in the format of allocator/memory/latency/h200.txt; or the pool on it as a short table:
// what a hit costs, whether steady steps leave the device alone, and whether the device's own account of its memory
// agrees. Part of ./run gpu-check; other devices show what the program does. Fails where a step makes device calls that
// it should not, or accounts differ.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory/latency.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/memory/traced_memory.h"

namespace {

using namespace poolgrad;

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;
constexpr std::size_t tolerance = 64 * MiB;  // of accounts: the driver keeps some memory for itself

std::unique_ptr<DeviceMemory> memory_of(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return std::make_unique<HostMemory>();
    case DeviceType::sim: return std::make_unique<SimulatedMemory>(device.index, std::size_t{8} << 30);
    case DeviceType::cuda: return std::make_unique<CudaMemory>(device.index);
  }
  throw ValueError("[device_check] unknown device");
}

// Nanoseconds of an allocation and its release, where a block is at hand: the median of many rounds.
double hit(CachingAllocator& pool, std::size_t bytes) {
  constexpr int rounds = 201;
  constexpr int pairs = 500;
  const Stream stream{pool.device(), 0};
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < pairs; ++i) pool.deallocate(pool.allocate(bytes, 64, stream), bytes, 64, stream);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count() / pairs);
  }
  std::ranges::nth_element(times, times.begin() + rounds / 2);
  return times[rounds / 2];
}

// A training step: activations forwards, released backwards, each after a temporary of its own.
void step(CachingAllocator& pool) {
  const Stream stream{pool.device(), 0};
  std::mt19937 random(1);
  std::vector<std::pair<void*, std::size_t>> activations;
  for (int layer = 0; layer < 200; ++layer) {
    const std::size_t bytes = 512 + random() % (std::size_t{1} << (10 + random() % 13));
    activations.emplace_back(pool.allocate(bytes, 64, stream), bytes);
    pool.deallocate(pool.allocate(4 * bytes, 64, stream), 4 * bytes, 64, stream);
  }
  for (; !activations.empty(); activations.pop_back()) {
    const auto [pointer, bytes] = activations.back();
    pool.deallocate(pool.allocate(bytes, 64, stream), bytes, 64, stream);
    pool.deallocate(pointer, bytes, 64, stream);
  }
}

double mib(std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(MiB); }

bool check(Device device) {
  auto traced = std::make_unique<TracedMemory>(memory_of(device));
  TracedMemory* log = traced.get();
  const std::size_t free_before = log->info().free;
  CachingAllocator pool(std::move(traced));
  for (const std::size_t bytes : {4 * KiB, 1 * MiB, 64 * MiB}) {
    std::printf("hit of %7zu KiB, allocate and release   %10.1f ns\n", bytes / KiB, hit(pool, bytes));
  }
  pool.trim();
  for (int warm_up = 0; warm_up < 2; ++warm_up) step(pool);
  log->clear();
  for (int steady = 0; steady < 10; ++steady) step(pool);
  const std::size_t calls = log->log().size();
  std::printf("device calls of ten steady steps          %10zu\n", calls);

  const std::size_t reserved = pool.statistics().reserved_bytes.current;
  const std::size_t free_now = log->info().free;
  const std::size_t taken = free_before - std::min(free_before, free_now);
  std::printf("reserved by the pool                      %10.1f MiB\n", mib(reserved));
  std::printf("less free, as the device counts           %10.1f MiB\n", mib(taken));
  const bool agrees = std::max(reserved, taken) - std::min(reserved, taken) <= tolerance;
  if (calls != 0) std::fprintf(stderr, "device_check: steady steps must not call the device\n");
  if (!agrees) std::fprintf(stderr, "device_check: the accounts differ by more than %.0f MiB\n", mib(tolerance));
  return calls == 0 && agrees;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string command = argc > 1 ? argv[1] : "";
    if (argc > 3 || (command != "facts" && command != "latency" && command != "pool")) {
      throw ValueError("usage: device_check facts|latency|pool [cuda:N | sim:N | cpu]");
    }
    const Device device = Device::parse(argc > 2 ? argv[2] : "cuda");
    if (command == "pool") return check(device) ? 0 : 1;
    if (command == "latency") {
      if (!device.is_cuda()) throw ValueError("[device_check] latency needs a GPU: " + to_string(device));
      LatencyTable table = calibrate(*make_cuda_driver(device.index));
      table.source += " on " + cuda_device_description(device.index);
      std::fputs(table.text().c_str(), stdout);
      return 0;
    }
    std::printf("%s: %s\n", to_string(device).c_str(),
                device.is_cuda() ? cuda_device_description(device.index).c_str() : "no GPU");
    std::printf("compiled for %s\n", POOLGRAD_CUDA_ARCHITECTURES);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
