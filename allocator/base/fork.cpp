#include "allocator/base/fork.h"

#include <pthread.h>

#include "allocator/base/owner_flag.h"
#include "allocator/front/thread_cache.h"

namespace poolgrad {

namespace {

void before_fork() {
  registry_mutex().lock();
  ThreadCaches::hold_still();
  scopes_mutex().lock();
  places_mutex().lock();
}

void after_fork(bool in_child) {
  places_mutex().unlock();
  scopes_mutex().unlock();
  ThreadCaches::go_on(in_child);
  registry_mutex().unlock();
}

void in_child() {
  OwnerFlag::join_process();
  after_fork(true);
}

}  // namespace

void hold_pools_still_over_forks() {
  static const int installed = pthread_atfork(
      before_fork, [] { after_fork(false); }, in_child);
  static_cast<void>(installed);  // without memory for it, forks are as they would be without
}

}  // namespace poolgrad
