// GPU-to-GPU messages by NCCL among the ranks of another communicator: processes of an MpiWorld or threads of a
// LocalGroup. libnccl.so.2 is loaded on first use and is no build dependency.
#pragma once

#include <memory>

#include "allocator/device.h"
#include "attention/ring/communicator.h"

namespace poolgrad::parallel {

struct NcclOptions {
  /// Seconds that a rank waits for the bytes of a started exchange; 0: no limit.
  double timeout = 600;
};

/// Returns a communicator of the same ranks that sends messages on streams of `device` by NCCL. NCCL uses its own
/// stream, in parallel with theirs. Other messages go through `ranks`, as do message sizes, which both sides compare,
/// and failure notices. Every rank of `ranks` must call it at the same point with a GPU of its own.
///
/// Transfer::wait() returns once the bytes have arrived, and throws any error of the transfer. A rank's exchanges run
/// one after another. Ranks must start theirs in matching order, as rings and the functions of collectives.h do. A
/// message to itself must be received in the same exchange. The first exchange between two ranks may wait for both. A
/// failure makes the communicator unusable.
///
/// Throws DeviceError for a device that is no GPU or is unusable, and without NCCL. Throws Error for
/// different NCCL versions, for two ranks on one GPU, and for a failed NCCL call, which it names with its rank.
std::shared_ptr<attention::Communicator> nccl_communicator(std::shared_ptr<attention::Communicator> ranks,
                                                           Device device, const NcclOptions& options = {});

}  // namespace poolgrad::parallel
