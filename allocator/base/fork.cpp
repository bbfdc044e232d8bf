#include "allocator/base/fork.h"

#include <pthread.h>

#include <new>
#include <variant>
#include <vector>

#include "allocator/base/owner_flag.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

namespace {

/// In order of creation.
struct ForkMutexes {
  using Any = std::variant<std::mutex*, std::shared_mutex*>;
  std::mutex mutex;
  std::vector<Any> all;
};
ForkMutexes& fork_mutexes() {
  static auto* const mutexes = new ForkMutexes;  // never destroyed: outlives every mutex in it
  return *mutexes;
}

// A shared lock suffices: readers change nothing, and a reader may wait for a lock that the forking thread holds. In
// the child, which has no other reader, unlock() constructs a new mutex.
void lock(std::shared_mutex& mutex) { mutex.lock_shared(); }
void unlock(std::shared_mutex& mutex, bool in_child) {
  mutex.unlock_shared();
  if (in_child) ::new (static_cast<void*>(&mutex)) std::shared_mutex;
}
void lock(std::mutex& mutex) { mutex.lock(); }
void unlock(std::mutex& mutex, bool) { mutex.unlock(); }

void before_fork() {
  fork_mutexes().mutex.lock();
  for (const auto& any : fork_mutexes().all) std::visit([](auto* mutex) { lock(*mutex); }, any);
  registry_mutex().lock();
  ThreadCacheTable::hold_still();
  lock(scopes_mutex());
  places_mutex().lock();
}

void after_fork(bool in_child) {
  places_mutex().unlock();
  unlock(scopes_mutex(), in_child);
  ThreadCacheTable::go_on(in_child);
  registry_mutex().unlock();
  for (const auto& any : fork_mutexes().all) std::visit([&](auto* mutex) { unlock(*mutex, in_child); }, any);
  fork_mutexes().mutex.unlock();
}

void in_child() {
  OwnerFlag::join_process();
  after_fork(true);
}

}  // namespace

template <class Mutex>
HeldOverForks<Mutex>::HeldOverForks() {
  hold_pools_still_over_forks();
  const std::lock_guard lock(fork_mutexes().mutex);
  fork_mutexes().all.push_back(static_cast<Mutex*>(this));
}

template <class Mutex>
HeldOverForks<Mutex>::~HeldOverForks() {
  const std::lock_guard lock(fork_mutexes().mutex);
  std::erase(fork_mutexes().all, ForkMutexes::Any(static_cast<Mutex*>(this)));
}

template class HeldOverForks<std::mutex>;
template class HeldOverForks<std::shared_mutex>;

void hold_pools_still_over_forks() {
  static const int installed = pthread_atfork(
      before_fork, [] { after_fork(false); }, in_child);
  static_cast<void>(installed);  // without memory for the handlers, forks are unprotected
}

}  // namespace poolgrad
