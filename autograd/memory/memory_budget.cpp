#include "autograd/memory/memory_budget.h"

#include <algorithm>
#include <utility>

#include "allocator/error.h"

namespace poolgrad {

namespace {

RematerialisationOptions on(Device device, RematerialisationOptions options) {
  options.device = device;
  return options;
}

}  // namespace

MemoryBudget::MemoryBudget(std::size_t bytes, Device device, RematerialisationOptions options)
    : pool_(allocator_for(device)),
      previous_(pool_.budget()),
      bytes_(std::min(bytes, previous_)),
      policy_(on(device, std::move(options))) {
  if (bytes == 0) throw ValueError("[memory_budget] a budget of 0 bytes on " + to_string(device));
  pool_.add_client(policy_.client());
  pool_.set_budget(bytes_);
}

MemoryBudget::~MemoryBudget() {
  if (pool_.budget() <= previous_) pool_.set_budget(previous_);  // otherwise other code raised it, and may use it
}

}  // namespace poolgrad
