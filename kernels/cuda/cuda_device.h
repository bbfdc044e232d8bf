// What the CUDA back end offers to host code. In a build without nvcc, stub.cpp takes its place.
#pragma once

#include <string>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels::cuda {

/// Why kernels cannot run on a GPU: no back end in this build, no driver or no device. Empty where they can.
std::string unavailable_reason();

/// out = gelu(x), f32 or f64, any layout. Throws DeviceError with the reason where there is no GPU.
void gelu(Stream stream, View out, View x);

}  // namespace poolgrad::kernels::cuda
