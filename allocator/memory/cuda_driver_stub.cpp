// Takes the place of the CUDA driver in a build without the CUDA toolkit.
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad {

std::string cuda_unavailable_reason() { return "poolgrad was built without CUDA"; }

namespace {

[[noreturn]] void refuse(int index) {
  throw DeviceError("[allocator] cuda:" + std::to_string(index) + " cannot be used: " + cuda_unavailable_reason() +
                    "; use cpu or sim:N");
}

}  // namespace

std::string cuda_device_description(int index) { refuse(index); }

std::unique_ptr<CudaDriver> make_cuda_driver(int index) { refuse(index); }

}  // namespace poolgrad
