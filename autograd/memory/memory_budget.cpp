#include "autograd/memory/memory_budget.h"

namespace poolgrad {

MemoryBudget::MemoryBudget(std::size_t bytes, Device device)
    : bytes_(bytes), pool_(allocator_for(device)), previous_(pool_.budget()) {
  pool_.add_client(policy_.client());
  pool_.set_budget(bytes);
}

MemoryBudget::~MemoryBudget() {
  if (previous_ >= bytes_) pool_.set_budget(previous_);
}

}  // namespace poolgrad
