// A lock that costs its owner nothing: one thread enters and leaves with plain stores, others take the state away from
// it now and then. The price is on their side: a system call that makes every running thread pass a memory barrier
// (membarrier(2), as in "asymmetric Dekker synchronisation", Dice, Huang and Yang 2001). Where there is no such call,
// and under the thread sanitizer, which does not know it, the owner's store is sequentially consistent instead.
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

/// Between enter() and leave() the owner must not block. Those who take the state away exclude each other by a lock of
/// their own, which the owner takes when it is refused.
class OwnerFlag {
 public:
  /// By the owner. False while the state is taken away; then nothing was entered.
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

  /// By others, in this order: revoke() all flags that are wanted, barrier() once, wait() for each owner to be out.
  /// Then the state is the caller's until restore().
  void revoke() noexcept { revoked_.store(true, std::memory_order_seq_cst); }
  static void barrier() noexcept;
  /// In the child of a fork, which is a process of its own.
  static void join_process() noexcept;
  void wait() const noexcept;
  void restore() noexcept { revoked_.store(false, std::memory_order_release); }

 private:
  /// Whether the system call is there; asked once.
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
