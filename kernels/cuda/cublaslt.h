// NVIDIA's cuBLASLt, loaded at the first product. POOLGRAD_HAVE_CUBLASLT: its header exists. Tests find another header
// of this name first, whose products are those of the CPU (tests/emulation).
#pragma once

#if __has_include(<cublasLt.h>)
#define POOLGRAD_HAVE_CUBLASLT

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "allocator/error.h"
#include "kernels/cuda/runtime.cuh"

namespace poolgrad::kernels {

inline void use_device(int index) { POOLGRAD_CUDA_CHECK(cudaSetDevice(index)); }

/// Returns an entry point of the library. Throws DeviceError if the library or the entry point is missing.
template <class Entry>
Entry cublaslt_entry(const char* name) {
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) throw DeviceError(std::string("[gemm] needs cuBLASLt on a GPU: ") + dlerror());
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) throw DeviceError("[gemm] needs another " + file + ", this one has no " + name);
  return reinterpret_cast<Entry>(symbol);
}
#define POOLGRAD_CUBLASLT_ENTRY(name) cublaslt_entry<decltype(&name)>(#name)

}  // namespace poolgrad::kernels

#endif
