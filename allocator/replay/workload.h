// What is replayed: a sequence of allocations and frees without addresses, so that any policy may place them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/memory_scope.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

enum class OperationKind : std::uint8_t {
  allocate,  // `block` of `bytes` for `stream`
  free,      // `block`, given back on `stream`
  use,       // `stream` uses `block`, which another stream allocated
  order,     // later work of `stream` waits for the work so far of stream `block`
  step       // a training step starts
};

struct Operation {
  std::uint64_t bytes = 0;  // of the block, for frees too
  std::uint32_t block = 0;  // 0, 1, 2, ... by order of allocation
  std::uint32_t think = 0;  // nanoseconds that pass before it
  std::uint16_t stream = 0;
  OperationKind kind = OperationKind::allocate;
  Category category = Category::unknown;

  friend bool operator==(const Operation&, const Operation&) = default;
};

struct Workload {
  std::string name;
  std::string description;  // one line
  std::vector<Operation> operations;
  std::uint32_t blocks = 0;   // allocations in `operations`
  std::uint16_t streams = 1;  // indices 0, 1, ...

  /// Largest sum of live requested bytes at any time: no policy can do with less.
  std::size_t lower_bound() const;
};

/// The operations of a trace. Blocks that were live before it begin it: those that are freed without having been
/// allocated, and those live at the end without an allocation. Allocations that failed are left out. Throws ValueError
/// for a trace that contradicts itself (a block freed twice, an unknown kind), with the number of the event.
Workload workload_of(const Trace& trace, const std::string& name);

}  // namespace poolgrad
