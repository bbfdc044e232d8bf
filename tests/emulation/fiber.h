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

// The thread sanitizer sees every thread of a block as a separate thread, ordered only by the kernel's own barriers. It
// therefore reports unordered accesses to global memory.

/// Orders work before happens_before(token) in one fiber before work after happens_after(token) in another.
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
/// Hides the fiber's reads and writes from the thread sanitizer. They belong to the emulation, which is one thread and
/// needs no ordering.
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

/// Resume point of a stack: `if (__builtin_setjmp(place) == 0) go_to(other);`. The compiler's jump loads three
/// registers. Under the address sanitizer longjmp() would clear the stack's shadow and read the signal mask by a system
/// call. That took half of a test's time. swapcontext() always makes the system call.
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

/// A stack on which threads of a block run one after another. A thread that waits keeps the stack, and the others
/// continue on another one. Threads that never wait need no switch. (Under the thread sanitizer each thread has its own
/// stack.)
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
  /// Discards the stack without unwinding.
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

  /// Switches from the scheduler to the fiber, until leave().
  void enter() {
    const bool fresh = std::exchange(fresh_, false);  // after the switch the fiber owns the members
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
  /// Must be the first call on a new stack.
  void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &outer_stack_, &outer_bytes_);
#endif
  }

 private:
  static constexpr std::size_t bytes = 256 << 10, guard = 4096;
  Place* scheduler_;
  ucontext_t context_{};  // start of the stack
  Place place_{};         // resume point
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
