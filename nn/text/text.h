// Text for language models, in memory or in files: bytes, or tokens of several bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace poolgrad::nn {

class ByteSource;

/// A text: pieces of memory and of files, one after the other. A token is a number of one byte (unencoded text) or two.
/// Copies share the pieces. Reading throws FileError if a file no longer has its former bytes.
class Text {
 public:
  Text() = default;
  Text(std::vector<std::uint8_t> bytes);
  Text(const std::vector<std::uint16_t>& tokens);
  /// All of a source, in tokens of `width` bytes: 1, or 2 in native byte order.
  explicit Text(std::shared_ptr<const ByteSource> source, std::int64_t width = 1);

  /// Returns the number of tokens.
  std::int64_t size() const { return begins_.empty() ? 0 : begins_.back() / width_; }
  bool empty() const { return size() == 0; }
  std::int64_t width() const { return width_; }
  std::int64_t operator[](std::int64_t token) const { return read(token, 1).front(); }

  /// Returns tokens [begin, end). Throws IndexError unless they lie within the text.
  Text part(std::int64_t begin, std::int64_t end) const;
  /// Appends a text of the same width.
  void append(const Text& more);

  /// Returns tokens [begin, begin + count). Throws IndexError as above.
  std::vector<std::int32_t> read(std::int64_t begin, std::int64_t count) const;
  /// Reads the bytes of tokens from `begin` on until `into` is full; its size must be whole tokens. Throws IndexError
  /// as above.
  void read_bytes(std::int64_t begin, std::span<std::uint8_t> into) const;

  using BlockVisitor = std::function<void(std::span<const std::uint8_t> bytes)>;
  static constexpr std::int64_t all = INT64_MAX;
  /// Calls f for each block of bytes in order, each a MiB except the last, with one block in memory at a time. Of a
  /// text of more than `most` bytes, visits blocks of that total, spread evenly over the text.
  void for_each_block(const BlockVisitor& f, std::int64_t most = all) const;
  /// Returns whether f is true for one of these blocks. Stops at the first.
  bool any_block(const std::function<bool(std::span<const std::uint8_t> bytes)>& f, std::int64_t most = all) const;

 private:
  struct Piece {
    std::shared_ptr<const ByteSource> source;
    std::int64_t offset;  // of its first byte in the source
  };
  /// Calls f(source, offset, bytes) for the parts of pieces that cover bytes [begin, end).
  template <class F>
  void for_each_part(std::int64_t begin, std::int64_t end, const F& f) const;
  void check_range(const char* operation, std::int64_t begin, std::int64_t end) const;

  std::int64_t width_ = 1;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> begins_;  // in bytes, of each piece and of the end; empty without pieces
};

}  // namespace poolgrad::nn
