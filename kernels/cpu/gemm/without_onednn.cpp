// Takes the place of onednn.cpp in a build without oneDNN.
#include "allocator/error.h"
#include "kernels/cpu/gemm/backends.h"

namespace poolgrad::kernels {

bool onednn_takes(const Gemm&) { return false; }

void gemm_onednn(const Gemm&, const void*, const void*, void*) {
  throw ValueError("[gemm] this build was made without oneDNN");
}

std::string_view onednn_version() { return ""; }

}  // namespace poolgrad::kernels
