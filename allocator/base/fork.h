// Keeps the pools consistent across fork(): the child has the memory of all threads but only the forking thread. At
// that moment no mutex may be locked, and no update half done.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace poolgrad {

/// Installs fork handlers. During a fork, no other thread is inside a device call, a cache hit or a lock of a pool. The
/// child can allocate, free and read statistics; the pools take over the caches of other threads, and live blocks stay
/// live. Host memory is the child's own copy; a child cannot use GPUs.
void hold_pools_still_over_forks();

/// A mutex outside the pools that is locked during a fork (a shared one: shared), so that the child finds its data
/// consistent. A thread that holds it may use pools. A thread that locks two must lock the older one first. Fork does
/// not wait for threads that hold it shared, and such a thread must not fork.
template <class Mutex>
class HeldOverForks : public Mutex {
 public:
  HeldOverForks();
  ~HeldOverForks();
};
using ForkMutex = HeldOverForks<std::mutex>;
using ForkSharedMutex = HeldOverForks<std::shared_mutex>;

/// Process-wide mutexes. Lock them in this order.
std::mutex& registry_mutex();
std::shared_mutex& scopes_mutex();
std::mutex& places_mutex();

}  // namespace poolgrad
