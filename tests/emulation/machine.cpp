// The emulated devices of this program; replaces cuda_driver.cpp.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "allocator/caching_allocator.h"
#include "tests/emulation/device.h"

namespace poolgrad::emulation {

namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

int device_count() {
  static const auto count = static_cast<int>(std::min<std::uint64_t>(number_from("POOLGRAD_EMULATED_DEVICES", 1), 256));
  return count;
}

namespace {
std::array<std::atomic<Device*>, 256> devices;
}

Device& device(int index) {
  if (index < 0 || index >= device_count()) refuse_cuda_device(index, cuda_unavailable_reason(), device_count());
  static std::mutex making;
  std::atomic<Device*>& slot = devices[static_cast<std::size_t>(index)];
  if (Device* known = slot.load(std::memory_order_acquire)) return *known;
  const std::lock_guard lock(making);
  if (slot.load() == nullptr) {  // never destroyed, like pools
    static auto* const schedule = new auto(std::make_shared<Schedule>(number_from("POOLGRAD_EMULATED_SEED", 0)));
    const char* memory = std::getenv("POOLGRAD_EMULATED_MEMORY");
    slot =
        new Device(index, memory ? parse_bytes(memory) / Device::page * Device::page : std::size_t{4} << 30, *schedule);
  }
  return *slot.load();
}

bool is_in_use(int index) {
  return index >= 0 && index < device_count() && devices[static_cast<std::size_t>(index)].load() != nullptr;
}

Device* owner_of(const void* address) {
  for (int index = 0; index < device_count(); ++index) {
    Device* const known = devices[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
    if (known && known->owns(address)) return known;
  }
  return nullptr;
}

}  // namespace poolgrad::emulation

namespace poolgrad {

std::string cuda_unavailable_reason() { return emulation::device_count() > 0 ? "" : "no CUDA device is emulated"; }

std::string cuda_device_description(int index) {
  return "emulated device, " + format_bytes(emulation::device(index).driver()->memory_info().total);
}

std::unique_ptr<CudaDriver> make_cuda_driver(int index) { return emulation::device(index).driver(); }

}  // namespace poolgrad
