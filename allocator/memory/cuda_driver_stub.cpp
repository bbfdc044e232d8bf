// Replaces the CUDA driver in a build without the CUDA toolkit.
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad {

std::string cuda_unavailable_reason() {
  return "poolgrad was built without CUDA (with nvcc installed, cmake --preset release -DPOOLGRAD_CUDA=ON and a build "
         "add it)";
}

namespace {
[[noreturn]] void refuse(int index) { refuse_cuda_device(index, cuda_unavailable_reason(), 0); }
}  // namespace

std::string cuda_device_description(int index) { refuse(index); }

std::unique_ptr<CudaDriver> make_cuda_driver(int index) { refuse(index); }

}  // namespace poolgrad
