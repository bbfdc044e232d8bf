// A tensor's bytes from and to the host a piece at a time: for files, which may be larger than what the host has room
// for.
#pragma once

#include <cstddef>
#include <functional>

#include "allocator/memory/device_memory.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Calls `take(piece, bytes)` for the tensor's bytes in row-major order, piece by piece: all at once where they lie so
/// on the CPU, else 2 MiB of host memory at a time (pinned, for a CUDA device). What has gaps is made dense where it
/// is. From a simulated device, zeros. The host waits for the device.
void read_bytes(const Tensor& tensor, const std::function<void(const void*, std::size_t)>& take);
/// The other way: `give(piece, bytes)` writes the next bytes of the tensor. An exception of it leaves the rest of the
/// tensor as it was. On a simulated device nothing is asked for.
void write_bytes(const Tensor& tensor, const std::function<void(void*, std::size_t)>& give);

/// A copy between devices uses the tensor on the device's current stream. Where that is not the stream of its memory,
/// the pool must know, or another tensor could have the memory too early.
void use_on_current_stream(const Tensor& tensor, Access access);

}  // namespace poolgrad
