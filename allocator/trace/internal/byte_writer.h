// Collects the bytes of a file in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace poolgrad {

/// A string that grows without being filled first: appending a number is a store.
class ByteWriter {
 public:
  void u8(std::uint8_t value) { *room(1) = static_cast<char>(value), ++size_; }
  /// Little endian.
  void u16(std::uint16_t value) { fixed(value); }
  void u32(std::uint32_t value) { fixed(value); }
  void u64(std::uint64_t value) { fixed(value); }
  void varint(std::uint64_t value) {
    char* to = room(10);
    char* const begin = to;
    for (; value >= 0x80; value >>= 7) *to++ = static_cast<char>(value | 0x80);
    *to++ = static_cast<char>(value);
    size_ += static_cast<std::size_t>(to - begin);
  }
  void raw(std::string_view bytes) {
    if (bytes.empty()) return;
    std::memcpy(room(bytes.size()), bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  void text(std::string_view value) {
    varint(value.size());
    raw(value);
  }

  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_.get(), size_}; }
  /// At least `bytes` that may be written at the returned place, of which wrote() makes some count.
  char* room(std::size_t bytes) {
    if (capacity_ - size_ < bytes) grow(bytes);
    return data_.get() + size_;
  }
  void wrote(std::size_t bytes) { size_ += bytes; }

 private:
  template <typename Integer>
  void fixed(Integer value) {
    char* to = room(sizeof value);
    for (std::size_t i = 0; i < sizeof value; ++i) to[i] = static_cast<char>(value >> (8 * i));
    size_ += sizeof value;
  }
  void grow(std::size_t bytes) {
    const std::size_t capacity = std::max(size_ + bytes, std::max<std::size_t>(4096, 2 * capacity_));
    auto larger = std::make_unique_for_overwrite<char[]>(capacity);
    if (size_ > 0) std::memcpy(larger.get(), data_.get(), size_);
    data_ = std::move(larger);
    capacity_ = capacity;
  }

  std::unique_ptr<char[]> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace poolgrad
