#include "allocator/pool/pool_context.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "allocator/error.h"

namespace poolgrad {

namespace {

constexpr std::size_t most_hits_between_looks = 1024;

std::uint64_t next_pool_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

PoolSettings::PoolSettings(DeviceMemory& memory, const AllocatorConfig& wanted)
    : id(next_pool_id()),
      config(wanted),
      device(memory.device()),
      granule(config.mode == AllocatorMode::none ? memory.granularity() : config.alignment),
      page(memory.granularity()),
      large_page(config.mode == AllocatorMode::none ? page : memory.large_page()),
      poison(config.poison),
      tags(config.mode != AllocatorMode::lightweight),
      races(memory.detects_races()),
      decays(config.decay != 0 || config.decay_ms != 0),
      hits_between_looks(config.decay != 0 ? std::min(config.decay, most_hits_between_looks) : most_hits_between_looks),
      magazines(config.magazines && !poison && !races && config.mode != AllocatorMode::none &&
                config.mode != AllocatorMode::planned) {
  if (!std::has_single_bit(config.alignment) || config.alignment < 16 || config.alignment > page) {
    throw ValueError("[allocator] the alignment must be a power of two from 16 to the page size of " +
                     std::to_string(page) + " bytes, got " + std::to_string(config.alignment));
  }
}

void die_of_misuse(const char* what, const void* pointer, Device device, const std::string& detail) noexcept {
  std::fprintf(stderr, "[deallocate] %s %p on %s: %s\n", what, pointer, to_string(device).c_str(), detail.c_str());
  std::abort();
}

}  // namespace poolgrad
