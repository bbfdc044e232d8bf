// Checked reads from a file's bytes, and a buffer for writes.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad {

/// A signed difference as a number that is small for small differences: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
constexpr std::uint64_t zigzag(std::uint64_t difference) {
  const auto value = static_cast<std::int64_t>(difference);
  return (difference << 1) ^ static_cast<std::uint64_t>(value >> 63);
}
constexpr std::uint64_t unzigzag(std::uint64_t coded) { return (coded >> 1) ^ (~(coded & 1) + 1); }

/// Reads untrusted bytes: checks every access; errors name the path and the offset.
class ByteReader {
 public:
  ByteReader(std::string_view bytes, const std::string& path, std::size_t base = 0)
      : bytes_(bytes), path_(path), base_(base) {}

  std::size_t offset() const { return base_ + at_; }
  std::size_t remaining() const { return bytes_.size() - at_; }

  std::uint8_t u8(const char* what) {
    need(1, what);
    return static_cast<std::uint8_t>(bytes_[at_++]);
  }
  /// Little endian.
  std::uint16_t u16(const char* what) { return fixed<std::uint16_t>(what); }
  std::uint32_t u32(const char* what) { return fixed<std::uint32_t>(what); }
  std::uint64_t u64(const char* what) { return fixed<std::uint64_t>(what); }
  /// Seven bits per byte, low bits first; the high bit is clear in the last byte.
  std::uint64_t varint(const char* what) {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const std::uint64_t byte = u8(what);
      if (shift == 63 && byte > 1) fail(std::string(what) + " has more than 64 bits");
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }
  /// A number of items, each of at least `least` bytes; throws if the remaining bytes cannot hold them.
  std::uint64_t count(const char* what, std::size_t least) {
    const std::uint64_t value = varint(what);
    if (value > remaining() / least)
      fail("too many " + std::string(what) + ": " + std::to_string(value) + " with " + std::to_string(remaining()) +
           " bytes left");
    return value;
  }
  std::string_view take(std::uint64_t bytes, const char* what) {
    need(bytes, what);
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(bytes));
    at_ += taken.size();
    return taken;
  }
  std::string_view text(const char* what) { return take(varint(what), what); }

  [[noreturn]] void fail_at(std::size_t offset, const std::string& reason) const {
    throw FileError("[read] " + printable_path(path_) + ": byte " + std::to_string(offset) + ": " + reason);
  }
  [[noreturn]] void fail(const std::string& reason) const { fail_at(offset(), reason); }

 private:
  void need(std::uint64_t bytes, const char* what) const {
    if (bytes > remaining()) [[unlikely]]
      lack(bytes, what);
  }
  [[noreturn, gnu::noinline]] void lack(std::uint64_t bytes, const char* what) const {
    fail(std::string(what) + " needs " + std::to_string(bytes) + " bytes, " + std::to_string(remaining()) +
         " are left");
  }
  template <typename Integer>
  Integer fixed(const char* what) {
    const std::string_view bytes = take(sizeof(Integer), what);
    Integer value = 0;
    for (std::size_t i = sizeof(Integer); i-- > 0;)
      value = static_cast<Integer>(value << 8 | static_cast<std::uint8_t>(bytes[i]));
    return value;
  }

  std::string_view bytes_;
  const std::string& path_;
  std::size_t base_;
  std::size_t at_ = 0;
};

/// A string that grows without initialization: appending a number is a store.
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
  /// In digits.
  void digits(std::uint64_t value, int base = 10) {
    char* to = room(20);
    size_ += static_cast<std::size_t>(std::to_chars(to, to + 20, value, base).ptr - to);
  }

  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_.get(), size_}; }
  /// Returns space for at least `bytes`; wrote() then appends a part of it.
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
