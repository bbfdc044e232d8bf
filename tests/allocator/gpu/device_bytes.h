// CUDA functions for the tests on a GPU: real streams, and bytes read back. In a build without CUDA
// device_bytes_none.cpp replaces device_bytes.cpp.
#pragma once

#include <cstdint>
#include <vector>

namespace poolgrad::testing {

/// Returns the byte at a device address. Waits for all of the device's work.
unsigned char read_device(const unsigned char* address);

/// Returns ids of `count` streams of device 0 that live until the program ends, the default stream first.
std::vector<std::uint64_t> device_streams(std::size_t count);

}  // namespace poolgrad::testing
