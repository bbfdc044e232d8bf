// What keeps the pools whole when the process forks: the child has the memory of all threads but only the thread that
// forked, so nothing may be half done, and no mutex locked, at that moment.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace poolgrad {

/// From now on, pools hold still while the process forks: no thread is inside one of their device calls, a hit or one
/// of their locks. The child can allocate, give back and read statistics; what other threads had cached is the pools',
/// and what was live in them stays live. Memory of the host is the child's own copy; GPUs cannot be used in a child.
void hold_pools_still_over_forks();

/// A mutex that pools know nothing of and that nobody holds while the process forks, but shared: what it guards is
/// whole in the child. Whoever holds it may use pools; of two that one thread holds, the older is to be locked first.
/// Forking does not wait for threads that hold it shared, and must not be done by one of them.
template <class Mutex>
class HeldOverForks : public Mutex {
 public:
  HeldOverForks();
  ~HeldOverForks();
};
using ForkMutex = HeldOverForks<std::mutex>;
using ForkSharedMutex = HeldOverForks<std::shared_mutex>;

/// Of the whole process, in the order in which they are taken.
std::mutex& registry_mutex();
std::shared_mutex& scopes_mutex();
std::mutex& places_mutex();

}  // namespace poolgrad
