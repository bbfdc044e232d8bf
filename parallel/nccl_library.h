// Function table of the NCCL calls in use, filled from the library found at run time or by a test. Declared here, so
// that the build needs no NCCL header.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "parallel/nccl.h"

namespace poolgrad::parallel {

struct NcclLibrary {
  using Result = int;  // ncclResult_t
  static constexpr Result success = 0, in_progress = 7;
  static constexpr int bytes_type = 1;  // ncclUint8 of ncclDataType_t
  struct UniqueId {
    char bytes[128];
  };
  using Handle = struct NcclHandle*;  // ncclComm_t

  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRank)(Handle* made, int ranks, UniqueId id, int rank);
  Result (*CommDestroy)(Handle handle);
  Result (*CommAbort)(Handle handle);
  Result (*CommGetAsyncError)(Handle handle, Result* error);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*Send)(const void* data, std::size_t count, int type, int peer, Handle handle, void* stream);
  Result (*Recv)(void* data, std::size_t count, int type, int peer, Handle handle, void* stream);
  const char* (*GetErrorString)(Result result);
};

/// Opens a library for the rest of the program. Throws DeviceError if it is missing or lacks a function.
NcclLibrary open_nccl(const std::string& file);

/// nccl_communicator() with a given library, which must outlive the communicator.
std::shared_ptr<attention::Communicator> nccl_communicator(std::shared_ptr<attention::Communicator> ranks,
                                                           Device device, const NcclOptions& options,
                                                           const NcclLibrary& library);

}  // namespace poolgrad::parallel
