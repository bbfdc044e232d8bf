#include "tests/allocator/gpu/device_bytes.h"

#include <cuda_runtime_api.h>

#include <stdexcept>

namespace poolgrad::testing {

namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

}  // namespace

unsigned char read_device(const unsigned char* address) {
  unsigned char value = 0;
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(&value, address, 1, cudaMemcpyDeviceToHost));
  return value;
}

std::vector<std::uint64_t> device_streams(std::size_t count) {
  static std::vector<std::uint64_t> streams{0};
  while (streams.size() < count) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams.push_back(reinterpret_cast<std::uint64_t>(stream));
  }
  return {streams.begin(), streams.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace poolgrad::testing
