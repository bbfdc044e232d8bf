// Declares all kernels of the CUDA back end.
#pragma once

#include "kernels/dispatch.h"

namespace poolgrad::kernels::on_cuda {

#define POOLGRAD_KERNEL(name) decltype(kernels::name) name;
POOLGRAD_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL

}  // namespace poolgrad::kernels::on_cuda
