#include "allocator/replay/workload.h"

#include <algorithm>

namespace poolgrad {

std::size_t Workload::lower_bound() const {
  std::size_t live = 0;
  std::size_t most = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == OperationKind::allocate) most = std::max(most, live += operation.bytes);
    if (operation.kind == OperationKind::free) live -= operation.bytes;
  }
  return most;
}

}  // namespace poolgrad
