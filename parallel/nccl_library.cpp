#include "parallel/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "allocator/error.h"

namespace poolgrad::parallel {

NcclLibrary open_nccl(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw DeviceError(std::string("[nccl] NCCL is needed between GPUs (apt-get install libnccl2): ") + dlerror());
  NcclLibrary calls{};
  const auto find = [&](auto& entry, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr) throw DeviceError("[nccl] " + file + " is older than NCCL 2.7: it has no " + name);
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(symbol);
  };
  find(calls.GetVersion, "ncclGetVersion");
  find(calls.GetUniqueId, "ncclGetUniqueId");
  find(calls.CommInitRank, "ncclCommInitRank");
  find(calls.CommDestroy, "ncclCommDestroy");
  find(calls.CommAbort, "ncclCommAbort");
  find(calls.CommGetAsyncError, "ncclCommGetAsyncError");
  find(calls.GroupStart, "ncclGroupStart");
  find(calls.GroupEnd, "ncclGroupEnd");
  find(calls.Send, "ncclSend");
  find(calls.Recv, "ncclRecv");
  find(calls.GetErrorString, "ncclGetErrorString");
  return calls;
}

}  // namespace poolgrad::parallel
