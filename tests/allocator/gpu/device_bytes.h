// What the tests on a GPU need of CUDA beside the allocator: real streams, and bytes read back. In a build without CUDA
// device_bytes_none.cpp takes the place of device_bytes.cpp.
#pragma once

#include <cstdint>
#include <vector>

namespace poolgrad::testing {

/// The byte at a device address. Waits for all of the device's work.
unsigned char read_device(const unsigned char* address);

/// `count` streams of device 0 that live as long as the program, the default stream first; as ids of Stream.
std::vector<std::uint64_t> device_streams(std::size_t count);

}  // namespace poolgrad::testing
