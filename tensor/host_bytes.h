// Moves a tensor's bytes between device and host in pieces, for files that may exceed host memory.
#pragma once

#include <cstddef>
#include <functional>

#include "allocator/memory/device_memory.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Calls `take(piece, bytes)` for the tensor's bytes in row-major order. A contiguous CPU tensor comes as one piece.
/// Others come in pieces of 2 MiB of host memory (pinned, for a CUDA device). A tensor with gaps is made contiguous on
/// its device. A simulated device gives zeros. The host waits for the device.
void read_bytes(const Tensor& tensor, const std::function<void(const void*, std::size_t)>& take);
/// The reverse: `give(piece, bytes)` writes the next bytes of the tensor. If it throws, the rest of the tensor stays
/// unchanged. Not called for a simulated device.
void write_bytes(const Tensor& tensor, const std::function<void(void*, std::size_t)>& give);

/// Tells the pool that a copy between devices uses the tensor on the device's current stream. Without it the pool could
/// reuse the memory too early if the tensor belongs to another stream.
void use_on_current_stream(const Tensor& tensor, Access access);

}  // namespace poolgrad
