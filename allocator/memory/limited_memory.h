// A part of a device: what several pools share, or what a program may use of a GPU that others use too.
#pragma once

#include <algorithm>
#include <atomic>

#include "allocator/memory/memory_adaptor.h"

namespace poolgrad {

/// Commits at most `limit` bytes; info() speaks of that part alone.
class LimitedMemory : public MemoryAdaptor {
 public:
  LimitedMemory(std::unique_ptr<DeviceMemory> inner, std::size_t limit)
      : MemoryAdaptor(std::move(inner)), limit_(limit) {}

  MemoryInfo info() const override {
    const MemoryInfo whole = MemoryAdaptor::info();
    return {.free = std::min(limit_ - committed_.load(), whole.free), .total = std::min(limit_, whole.total)};
  }
  bool commit(void* address, std::size_t bytes) override {
    // Never added first and taken back after: a request that is too large would make a small one of another thread
    // fail.
    std::size_t committed = committed_.load();
    do {
      if (bytes > limit_ - committed) return false;
    } while (!committed_.compare_exchange_weak(committed, committed + bytes));
    bool given = false;
    try {
      given = inner().commit(address, bytes);
    } catch (...) {
      committed_ -= bytes;
      throw;
    }
    if (!given) committed_ -= bytes;
    return given;
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    inner().decommit(address, bytes);
    committed_ -= bytes;
  }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> committed_{0};
};

}  // namespace poolgrad
