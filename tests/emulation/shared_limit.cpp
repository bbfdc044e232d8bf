#include "tests/emulation/shared_limit.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "kernels/launch.h"

namespace poolgrad::emulation {
namespace {

struct Limits {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, std::int64_t> bytes;
};
Limits& limits() {
  static auto& instance = *new Limits;
  return instance;
}

}  // namespace

void set_shared_limit(int device, const void* kernel, std::int64_t bytes) {
  if (bytes < 0 || bytes > kernels::max_shared_bytes)
    throw CudaError("[cudaFuncSetAttribute] a block cannot have " + std::to_string(bytes) + " bytes of shared memory");
  const std::lock_guard lock(limits().mutex);
  limits().bytes[{device, kernel}] = bytes;
}

std::int64_t shared_limit(int device, const void* kernel) {
  const std::lock_guard lock(limits().mutex);
  const auto known = limits().bytes.find({device, kernel});
  return known == limits().bytes.end() ? 0 : known->second;
}

std::int64_t most_shared_bytes(const char* op, int device, const void* kernel, std::int64_t dynamic) {
  if (dynamic == 0) return kernels::large_shared_bytes;  // kernels with more static memory do not compile
  const std::int64_t limit = shared_limit(device, kernel);
  if (limit == 0) return kernels::large_shared_bytes - 1;
  if (dynamic > limit)
    throw CudaError("[" + std::string(op) + "] a launch with " + std::to_string(dynamic) +
                    " bytes of dynamic shared memory is above the kernel's limit of " + std::to_string(limit));
  return kernels::max_shared_bytes;
}

}  // namespace poolgrad::emulation
