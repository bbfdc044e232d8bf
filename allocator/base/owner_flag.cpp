#include "allocator/base/owner_flag.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace poolgrad {

namespace {

long membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0); }

}  // namespace

bool OwnerFlag::has_barrier() noexcept {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  return registered;
}

void OwnerFlag::barrier() noexcept {
  if (has_barrier()) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

void OwnerFlag::join_process() noexcept {
  if (has_barrier()) membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

void OwnerFlag::wait() const noexcept {
  while (inside_.load(std::memory_order_seq_cst)) std::this_thread::yield();
}

}  // namespace poolgrad
