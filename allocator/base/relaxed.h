// A variable with one writer at a time and concurrent readers: relaxed atomic loads and stores. Copies and converts
// like a plain T.
#pragma once

#include <atomic>

namespace poolgrad {

template <class T>
class Relaxed {
 public:
  Relaxed() = default;
  Relaxed(T value) noexcept : value_(value) {}
  Relaxed(const Relaxed& other) noexcept : value_(static_cast<T>(other)) {}
  Relaxed& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Relaxed& operator=(const Relaxed& other) noexcept { return *this = static_cast<T>(other); }
  operator T() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};

}  // namespace poolgrad
