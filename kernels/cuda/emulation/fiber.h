// Stacks for the threads of a block.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <utility>

#include "allocator/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace poolgrad::emulation {

// To the thread sanitizer every thread of a block is a thread of its own, which nothing orders but what the kernel
// says: so it sees threads of a block that use one address of global memory with no barrier in between.

/// What comes before happens_before(token) in one fiber is ordered before what follows happens_after(token) in another.
inline void happens_before([[maybe_unused]] void* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(token);
#endif
}
inline void happens_after([[maybe_unused]] void* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(token);
#endif
}
/// While it lives, reads and writes of this fiber are the emulation's, which is one thread and needs no order.
class Unobserved {
 public:
#if defined(__SANITIZE_THREAD__)
  Unobserved() { __tsan_ignore_thread_begin(); }
  ~Unobserved() { __tsan_ignore_thread_end(); }
#else
  Unobserved() {}
  ~Unobserved() {}
#endif
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};

/// Where a stack goes on: `if (__builtin_setjmp(place) == 0) go_to(other);`. The compiler's jump is a load of three
/// registers; longjmp() would, under the address sanitizer, clear the shadow of the stack and ask the kernel for that
/// of signals each time, which was half of what a test took there, and swapcontext() always asks it.
using Place = void* [5];

#if defined(__clang__)
[[clang::optnone, gnu::noinline, gnu::no_sanitize_address]]
#else
[[gnu::noipa, gnu::no_sanitize_address]]
#endif
inline void
go_to(Place& place) {
  __builtin_longjmp(place, 1);
}

/// A stack that one thread of a block after another runs on, until one has to wait: it keeps the stack, and the others
/// go on on another. Threads that never wait therefore cost no switch. (Under the thread sanitizer each has its own.)
class Fiber {
 public:
  Fiber(void (*body)(), Place* scheduler) : scheduler_(scheduler) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, guard, PROT_NONE) != 0)
      throw CudaError("[emulation] no memory for the stack of a thread");
#if defined(__SANITIZE_THREAD__)
    shadow_ = __tsan_create_fiber(0);
    __tsan_set_fiber_name(shadow_, "of a kernel");
#endif
    getcontext(&context_);
    context_.uc_stack.ss_sp = memory_;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, body, 0);
  }
  /// What is on its stack is forgotten.
  ~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(memory_, bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(shadow_);
#endif
    munmap(memory_, bytes);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From the scheduler to here, until leave().
  void enter() {
    const bool fresh = std::exchange(fresh_, false);  // what follows the switch is the fiber's
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, memory_, bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    outer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(shadow_, __tsan_switch_to_fiber_no_sync);
#endif
    if (__builtin_setjmp(*scheduler_) == 0) {
      if (!fresh) go_to(place_);
      setcontext(&context_);
    }
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }
  void leave() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, outer_stack_, outer_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(outer_, __tsan_switch_to_fiber_no_sync);
#endif
    if (__builtin_setjmp(place_) == 0) go_to(*scheduler_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &outer_stack_, &outer_bytes_);
#endif
  }
  /// The first thing on a stack.
  void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &outer_stack_, &outer_bytes_);
#endif
  }

 private:
  static constexpr std::size_t bytes = 256 << 10, guard = 4096;
  Place* scheduler_;
  ucontext_t context_{};  // where it begins
  Place place_{};         // where it goes on
  bool fresh_ = true;
  void* memory_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  const void* outer_stack_ = nullptr;
  std::size_t outer_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* shadow_ = nullptr;
  void* outer_ = nullptr;
#endif
};

}  // namespace poolgrad::emulation
