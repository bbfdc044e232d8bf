#include "allocator/base/fork.h"

#include <pthread.h>

#include <new>
#include <vector>

#include "allocator/base/owner_flag.h"
#include "allocator/front/thread_cache.h"

namespace poolgrad {

namespace {

/// In the order in which they were made.
struct ForkMutexes {
  std::mutex mutex;
  std::vector<ForkMutex*> all;
};
ForkMutexes& fork_mutexes() {
  static auto* const mutexes = new ForkMutexes;  // outlives every one of them
  return *mutexes;
}

void before_fork() {
  fork_mutexes().mutex.lock();
  for (ForkMutex* mutex : fork_mutexes().all) mutex->lock();
  registry_mutex().lock();
  ThreadCaches::hold_still();
  scopes_mutex().lock();
  places_mutex().lock();
}

void after_fork(bool in_child) {
  places_mutex().unlock();
  scopes_mutex().unlock();
  // In the child this thread has another id, and glibc took it for a reader, not for the owner: a lock as new.
  if (in_child) ::new (static_cast<void*>(&scopes_mutex())) std::shared_mutex;
  ThreadCaches::go_on(in_child);
  registry_mutex().unlock();
  for (ForkMutex* mutex : fork_mutexes().all) mutex->unlock();
  fork_mutexes().mutex.unlock();
}

void in_child() {
  OwnerFlag::join_process();
  after_fork(true);
}

}  // namespace

ForkMutex::ForkMutex() {
  hold_pools_still_over_forks();
  const std::lock_guard lock(fork_mutexes().mutex);
  fork_mutexes().all.push_back(this);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(fork_mutexes().mutex);
  std::erase(fork_mutexes().all, this);
}

void hold_pools_still_over_forks() {
  static const int installed = pthread_atfork(
      before_fork, [] { after_fork(false); }, in_child);
  static_cast<void>(installed);  // without memory for it, forks are as they would be without
}

}  // namespace poolgrad
