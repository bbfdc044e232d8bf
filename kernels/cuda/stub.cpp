// Takes the place of the CUDA back end in a build without nvcc.
#include "allocator/error.h"
#include "kernels/cuda/cuda_device.h"

namespace poolgrad::kernels::cuda {

std::string unavailable_reason() { return "poolgrad was built without nvcc"; }

void gelu(Stream stream, View, View) {
  throw DeviceError("[gelu] no kernels for " + to_string(stream.device) + ": " + unavailable_reason());
}

}  // namespace poolgrad::kernels::cuda
