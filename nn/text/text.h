// Text for language models: bytes, or tokens of several of them, wherever they lie.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace poolgrad::nn {

class ByteSource;

/// A text: pieces of memory and of files, one after the other. Tokens are numbers of one byte (a text as it is) or of
/// two. Copies share the pieces. Reading throws FileError where a file no longer has what it had.
class Text {
 public:
  Text() = default;
  Text(std::vector<std::uint8_t> bytes);
  Text(const std::vector<std::uint16_t>& tokens);
  /// All of a source, in tokens of `width` bytes: 1, or 2 in the order of this machine.
  explicit Text(std::shared_ptr<const ByteSource> source, std::int64_t width = 1);

  /// Tokens.
  std::int64_t size() const { return begins_.empty() ? 0 : begins_.back() / width_; }
  bool empty() const { return size() == 0; }
  std::int64_t width() const { return width_; }
  std::int64_t operator[](std::int64_t token) const { return read(token, 1).front(); }

  /// Tokens [begin, end). IndexError where they do not lie within the text.
  Text part(std::int64_t begin, std::int64_t end) const;
  /// Of the same width.
  void append(const Text& more);

  /// Tokens [begin, begin + count). IndexError as above.
  std::vector<std::int32_t> read(std::int64_t begin, std::int64_t count) const;
  /// The bytes of tokens from `begin` on, as many as there is room for, which is whole tokens. IndexError as above.
  void read_bytes(std::int64_t begin, std::span<std::uint8_t> into) const;

  using BlockVisitor = std::function<void(std::span<const std::uint8_t> bytes)>;
  static constexpr std::int64_t all = INT64_MAX;
  /// Calls f for block after block of its bytes, a MiB each but the last, holding no more than that in memory. Of a
  /// text of more than `most` bytes only blocks of so many together, spread evenly from its beginning to its end.
  void for_each_block(const BlockVisitor& f, std::int64_t most = all) const;
  /// Whether f is true for a block of the same. Blocks after the first such one are not read.
  bool any_block(const std::function<bool(std::span<const std::uint8_t> bytes)>& f, std::int64_t most = all) const;

 private:
  struct Piece {
    std::shared_ptr<const ByteSource> source;
    std::int64_t offset;  // of its first byte in the source
  };
  /// Calls f(source, offset, bytes) for the parts of pieces that bytes [begin, end) are in.
  template <class F>
  void for_each_part(std::int64_t begin, std::int64_t end, const F& f) const;
  void check_range(const char* operation, std::int64_t begin, std::int64_t end) const;

  std::int64_t width_ = 1;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> begins_;  // of the pieces and of what would follow them, in bytes; none without pieces
};

}  // namespace poolgrad::nn
