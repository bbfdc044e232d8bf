// Messages from GPU to GPU by NCCL, among ranks that some other communicator has brought together: processes of an
// MpiWorld, or threads of a LocalGroup. NCCL is looked for when it is asked for, as libnccl.so.2, and no part of a
// build.
#pragma once

#include <memory>

#include "allocator/device.h"
#include "attention/ring/communicator.h"

namespace poolgrad::parallel {

struct NcclOptions {
  /// Seconds that a rank waits for bytes which its peers have begun to exchange; 0: for ever.
  double timeout = 600;
};

/// The same ranks, whose messages on streams of `device` go by NCCL, beside the work of that stream; others go by
/// `ranks`, and so does a message's size, by which both sides know that they agree, and the news of a failure. Every
/// rank of `ranks` calls it at once, each with a GPU of its own.
///
/// Transfer::wait() returns once the bytes are there, so that what goes wrong is heard of there. A rank's exchanges are
/// carried out one after another: ranks start theirs in orders that fit, as rings and the functions of collectives.h
/// do, and what a rank sends to itself, it receives in the same exchange. The first exchange between two ranks may wait
/// for both. After a failure the communicator is of no more use.
///
/// Throws DeviceError for a device that is no GPU or cannot be used, and without NCCL; Error where ranks have other
/// versions of it, two have the same GPU, or a call of NCCL fails, naming call and rank.
std::shared_ptr<attention::Communicator> nccl_communicator(std::shared_ptr<attention::Communicator> ranks,
                                                           Device device, const NcclOptions& options = {});

}  // namespace poolgrad::parallel
