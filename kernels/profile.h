// What every kernel takes: while a profile is taken, the calls of a back end's table go through one that times them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/stream.h"

namespace poolgrad::kernels {

struct KernelTable;

struct KernelCall {
  std::string_view kernel;        // "gemm", "unary"
  std::string_view kind;          // of the many in one: "gelu", "sum"; else empty
  std::uint32_t scope = 0;        // in which it was called, see scope_name()
  std::uint64_t begin = 0;        // nanoseconds since 1970
  std::uint64_t nanoseconds = 0;  // without those of kernels that it called
  std::uint64_t span = 0;         // with them
  double bytes = 0;               // of its operands, each read or written once
  double operations = 0;  // multiplications and additions of products and of attention over the pairs that it keeps:
                          // two products forward, five backward; 0 of other kernels
};

/// Records the calls of kernels on CPUs and GPUs, of all threads, while it lives; there is one at a time, else
/// ValueError. A GPU's stream is waited for before and after each call. Results stay the same bits.
class KernelProfile {
 public:
  KernelProfile();
  ~KernelProfile();
  KernelProfile(const KernelProfile&) = delete;
  KernelProfile& operator=(const KernelProfile&) = delete;

  /// In the order in which they ended.
  std::vector<KernelCall> calls() const;
};

/// For dispatch.cpp: the table of timed kernels while there is a profile, else nullptr.
const KernelTable* timed_kernels();

}  // namespace poolgrad::kernels
