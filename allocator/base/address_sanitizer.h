// Marks bytes of a pool's host memory as usable or unusable for AddressSanitizer. It then reports use after free and
// out-of-bounds access to tensors as for malloc. Does nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define POOLGRAD_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOLGRAD_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef POOLGRAD_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

#include "allocator/device.h"

namespace poolgrad {

#ifdef POOLGRAD_ADDRESS_SANITIZER
inline void allow_access(Device device, const void* address, std::size_t bytes) {
  if (device.is_cpu()) __asan_unpoison_memory_region(address, bytes);
}
inline void forbid_access(Device device, const void* address, std::size_t bytes) {
  if (device.is_cpu()) __asan_poison_memory_region(address, bytes);
}
#else
inline void allow_access(Device, const void*, std::size_t) {}
inline void forbid_access(Device, const void*, std::size_t) {}
#endif

}  // namespace poolgrad
