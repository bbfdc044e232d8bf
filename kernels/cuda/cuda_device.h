// The kernels of CUDA devices. In a build without nvcc, stub.cpp takes their place: an empty table.
#pragma once

#include <string>

#include "kernels/dispatch.h"

namespace poolgrad::kernels {

extern const KernelTable cuda_kernels;

namespace cuda {

/// Why kernels cannot run on a GPU: no back end in this build, no driver or no device. Empty where they can.
std::string unavailable_reason();

}  // namespace cuda

/// Throws the DeviceError of a call that the back end of the stream's device does not have.
[[noreturn]] void throw_no_kernel(Stream stream, std::string_view op);

}  // namespace poolgrad::kernels
