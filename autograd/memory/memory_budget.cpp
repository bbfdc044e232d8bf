#include "autograd/memory/memory_budget.h"

namespace poolgrad {

namespace {

RematerialisationOptions on(Device device, RematerialisationOptions options) {
  options.device = device;
  return options;
}

}  // namespace

MemoryBudget::MemoryBudget(std::size_t bytes, Device device, RematerialisationOptions options)
    : bytes_(bytes), pool_(allocator_for(device)), previous_(pool_.budget()), policy_(on(device, std::move(options))) {
  pool_.add_client(policy_.client());
  pool_.set_budget(bytes);
}

MemoryBudget::~MemoryBudget() {
  if (previous_ >= bytes_) pool_.set_budget(previous_);
}

}  // namespace poolgrad
