// Stacks for the threads of a block.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>

#include "allocator/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace poolgrad::emulation {

/// A stack that one thread of a block after another runs on, until one has to wait: it keeps the stack, and the others
/// go on on another. Threads that never wait therefore cost no switch. (The thread sanitizer tells threads apart by
/// their stacks: there, each has one.)
class Fiber {
 public:
  Fiber(void (*body)(), jmp_buf* scheduler) : body_(body), scheduler_(scheduler) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, guard, PROT_NONE) != 0)
      throw CudaError("[emulation] no memory for the stack of a thread");
#if defined(__SANITIZE_THREAD__)
    shadow_ = __tsan_create_fiber(0);
#endif
    restart();
  }
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(shadow_);
#endif
    munmap(memory_, bytes);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// It begins anew; what was on its stack is forgotten.
  void restart() {
    getcontext(&context_);
    context_.uc_stack.ss_sp = memory_;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, body_, 0);
    fresh_ = true;
  }

  /// From the scheduler to here, until leave().
  void enter() {
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, memory_, bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    outer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(shadow_, __tsan_switch_to_fiber_no_sync);
#endif
    if (_setjmp(*scheduler_) == 0) {
      if (!fresh_) _longjmp(place_, 1);
      fresh_ = false;
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
    if (_setjmp(place_) == 0) _longjmp(*scheduler_, 1);
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
  void (*body_)();
  jmp_buf* scheduler_;
  ucontext_t context_{};  // where it begins
  jmp_buf place_{};       // where it goes on: swapcontext() would ask the kernel for the mask of signals each time
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
