// device_check facts|latency|pool [cuda:N | sim:N | cpu]. facts: properties of a device. latency: cost of each driver
// call on an idle GPU, as a latency table in the format of allocator/memory/latency/h200.txt. pool: a short table with
// the cost of a hit, the device calls of steady steps, and a comparison with the device's own memory account. Part of
// ./run gpu-check; other devices show how the program works. Fails if a steady step makes device calls, or if accounts
// differ.
//
// device_check latency cuda:N FOLDER also writes the table to FOLDER/latency-<name of the GPU>.txt, for replays
// (--latency).
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <fstream>
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
#include "benchmarks/small_sizes.h"

namespace {

using namespace poolgrad;

constexpr std::size_t KiB = 1024;
constexpr std::size_t MiB = 1024 * KiB;
constexpr std::size_t tolerance = 64 * MiB;  // between the accounts: the driver keeps some memory for itself

std::unique_ptr<DeviceMemory> memory_of(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return std::make_unique<HostMemory>();
    case DeviceType::sim: return std::make_unique<SimulatedMemory>(device.index, std::size_t{8} << 30);
    case DeviceType::cuda: return std::make_unique<CudaMemory>(device.index);
  }
  throw ValueError("[device_check] unknown device");
}

// Returns the nanoseconds of an allocation and its free with a cached block: the median of many rounds.
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

// A training step: allocates activations in order and frees them in reverse, each after a temporary.
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

// Returns "latency-nvidia-h200.txt" for "NVIDIA H200, compute capability 9.0, ...".
std::string file_of(const std::string& description) {
  std::string name = "latency";
  bool letter = false;
  for (const char c : description.substr(0, description.find(','))) {
    const bool before = letter;
    letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter) name += (before ? "" : "-") + std::string(1, static_cast<char>(std::tolower(c)));
  }
  return name + ".txt";
}

void print_latency(Device device, const std::string& folder) {
  if (!device.is_cuda()) throw ValueError("[device_check] latency needs a GPU: " + to_string(device));
  CalibrationOptions options;
  if (small_sizes()) options.repetitions = 3;
  LatencyTable table = calibrate(*make_cuda_driver(device.index), options);
  const std::string description = cuda_device_description(device.index);
  table.source += " on " + description;
  std::fputs(table.text().c_str(), stdout);
  if (folder.empty()) return;
  const std::string path = folder + "/" + file_of(description);
  std::ofstream(path) << table.text();
  LatencyTable::named(path);  // checks that the written table can be read
  std::printf("written to %s: ./run lab replay WORKLOAD --latency %s, and compare, count with it\n", path.c_str(),
              path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string command = argc > 1 ? argv[1] : "";
    const bool known = command == "facts" || command == "latency" || command == "pool";
    if (!known || argc > (command == "latency" ? 4 : 3)) {
      throw ValueError("usage: device_check facts|latency|pool [cuda:N | sim:N | cpu], or latency cuda:N FOLDER");
    }
    const Device device = Device::parse(argc > 2 ? argv[2] : "cuda");
    if (command == "pool") return check(device) ? 0 : 1;
    if (command == "latency") {
      print_latency(device, argc > 3 ? argv[3] : "");
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
