// An array of zeros that costs no memory where nothing was ever written: pages of the kernel, which come when they are
// touched, and which can be counted and given back.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "allocator/base/address_sanitizer.h"

namespace poolgrad {

template <class T>
class SparseArray {
 public:
  explicit SparseArray(std::size_t count)
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        bytes_((count * sizeof(T) + page_ - 1) / page_ * page_),
        touched_((bytes_ / page_ + 63) / 64) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, bytes_, MADV_NOHUGEPAGE);  // which would come with the first word
    look_for_pointers(memory, bytes_);
    data_ = static_cast<T*>(memory);
  }
  ~SparseArray() {
    forget_pointers(data_, bytes_);
    munmap(data_, bytes_);
  }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;

  /// Only what was touched may be written.
  T& operator[](std::size_t index) const noexcept { return data_[index]; }
  bool is_touched(std::size_t index) const noexcept {
    const std::size_t page = index * sizeof(T) / page_;
    return (touched_[page / 64] >> (page % 64) & 1) != 0;
  }
  void touch(std::size_t index) noexcept {
    if (is_touched(index)) return;
    const std::size_t page = index * sizeof(T) / page_;
    // What is written next is near by, mostly, and a page that comes alone costs several times as much.
    std::size_t count = std::min({1 + pages_ / pages_per_page_ahead, most_pages_at_once, bytes_ / page_ - page});
    if (count > 1 && !populate(page, count)) count = 1;
    for (std::size_t i = page; i < page + count; ++i) {
      std::uint64_t& word = touched_[i / 64];
      const std::uint64_t bit = std::uint64_t{1} << (i % 64);
      pages_ += (word & bit) == 0;
      word |= bit;
    }
  }
  /// Bytes held, but for those that are there from the start.
  std::size_t bytes() const noexcept { return pages_ * page_; }
  std::size_t fixed_bytes() const noexcept { return touched_.capacity() * sizeof(std::uint64_t); }

  /// Calls visit(first, end) for the indices of each page that was touched.
  template <class Visit>
  void for_each_page(Visit visit) const {
    for (std::size_t i = 0; i < touched_.size(); ++i) {
      for (std::uint64_t left = touched_[i]; left != 0; left &= left - 1) {
        const std::size_t page = i * 64 + static_cast<std::size_t>(std::countr_zero(left));
        visit(page * page_ / sizeof(T), (page + 1) * page_ / sizeof(T));
      }
    }
  }
  /// Gives back the pages that hold nothing but zeros.
  void trim() noexcept {
    for_each_page([&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; ++i) {
        if (data_[i] != T{}) return;
      }
      if (madvise(data_ + first, page_, MADV_DONTNEED) != 0) return;
      const std::size_t page = first * sizeof(T) / page_;
      touched_[page / 64] &= ~(std::uint64_t{1} << (page % 64));
      --pages_;
    });
  }

 private:
  static constexpr std::size_t pages_per_page_ahead = 8;
  static constexpr std::size_t most_pages_at_once = 32;

  /// False where the system has no such call, or no memory.
  bool populate([[maybe_unused]] std::size_t page, [[maybe_unused]] std::size_t count) const noexcept {
#ifdef MADV_POPULATE_WRITE
    return madvise(reinterpret_cast<char*>(data_) + page * page_, count * page_, MADV_POPULATE_WRITE) == 0;
#else
    return false;
#endif
  }

  T* data_ = nullptr;
  std::size_t page_;
  std::size_t bytes_;
  std::size_t pages_ = 0;               // touched
  std::vector<std::uint64_t> touched_;  // a bit for each page
};

}  // namespace poolgrad
