// Replaces the CUDA back end in a build without nvcc.
#include "kernels/dispatch.h"

namespace poolgrad::kernels {

const KernelTable cuda_kernels{};

std::string cuda::unavailable_reason() { return "poolgrad was built without nvcc"; }

void cuda::finish(Stream stream) { throw_no_kernel(stream, "synchronize"); }

}  // namespace poolgrad::kernels
