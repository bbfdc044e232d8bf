// Kernel profiler. While a profile exists, calls of a back end's table go through wrappers that time them.
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
  std::string_view kind;          // variant of a kernel with several: "gelu", "sum"; else empty
  std::uint32_t scope = 0;        // scope of the call, see scope_name()
  std::uint64_t begin = 0;        // nanoseconds since 1970
  std::uint64_t nanoseconds = 0;  // without nested kernel calls
  std::uint64_t span = 0;         // with nested kernel calls
  double bytes = 0;               // of its operands, each counted once
  double operations = 0;  // multiplications and additions of matrix products, and of attention over its kept pairs:
                          // two products forward, five backward; 0 for other kernels
};

/// Records the kernel calls of all threads on CPUs and GPUs during its lifetime. A second profile at the same time
/// throws ValueError. It synchronizes a GPU's stream before and after each call. Results keep the same bits.
class KernelProfile {
 public:
  KernelProfile();
  ~KernelProfile();
  KernelProfile(const KernelProfile&) = delete;
  KernelProfile& operator=(const KernelProfile&) = delete;

  /// Returns the calls in the order in which they ended.
  std::vector<KernelCall> calls() const;
};

/// For dispatch.cpp: returns the table of timed kernels during a profile, else nullptr.
const KernelTable* timed_kernels();

}  // namespace poolgrad::kernels
