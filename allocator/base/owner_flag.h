// An asymmetric lock, free for its owner: one thread enters and leaves with plain stores, and others occasionally
// revoke the state. They pay with a system call that makes every running thread execute a memory barrier
// (membarrier(2), as in "asymmetric Dekker synchronisation", Dice, Huang and Yang 2001). Without that call, and under
// the thread sanitizer, which does not know it, the owner's store is sequentially consistent instead.
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define POOLGRAD_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define POOLGRAD_THREAD_SANITIZER 1
#endif
#endif

namespace poolgrad {

/// The owner must not block between enter() and leave(). Revoking threads exclude each other by a lock of their own,
/// which the owner takes when enter() refuses.
class OwnerFlag {
 public:
  /// For the owner. Returns false, without entering, while the state is revoked.
  bool enter() noexcept {
    if (asymmetric_) [[likely]] {
      inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      inside_.store(true, std::memory_order_seq_cst);
    }
    if (!revoked_.load(std::memory_order_seq_cst)) [[likely]]
      return true;
    leave();
    return false;
  }
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  /// For other threads, in this order: revoke() each flag, barrier() once, wait() until each owner is out. Then the
  /// caller owns the state until restore().
  void revoke() noexcept { revoked_.store(true, std::memory_order_seq_cst); }
  static void barrier() noexcept;
  /// For the child of a fork, which must register as a process of its own.
  static void join_process() noexcept;
  void wait() const noexcept;
  void restore() noexcept { revoked_.store(false, std::memory_order_release); }

 private:
  /// Whether the system supports membarrier(2); asked once.
  static bool has_barrier() noexcept;

  std::atomic<bool> inside_ = false;
  std::atomic<bool> revoked_ = false;
#ifdef POOLGRAD_THREAD_SANITIZER
  static constexpr bool asymmetric_ = false;
#else
  const bool asymmetric_ = has_barrier();
#endif
};

}  // namespace poolgrad
