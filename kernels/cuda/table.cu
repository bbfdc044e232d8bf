#include "allocator/memory/cuda_memory.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launcher.cuh"

namespace poolgrad::kernels {

const KernelTable cuda_kernels{
#define POOLGRAD_KERNEL(name) .name = on_cuda::name,
    POOLGRAD_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

std::string cuda::unavailable_reason() { return cuda_unavailable_reason(); }

void cuda::finish(Stream stream) { synchronize(stream); }

}  // namespace poolgrad::kernels
