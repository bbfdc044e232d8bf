// Sources of bytes: memory, a mapped file, or a spool, which moves data to a nameless file if it does not fit into
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace poolgrad::nn {

/// A constant sequence of bytes.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t size() const = 0;
  /// Copies the bytes from `offset` on, which must exist. Throws FileError if a file no longer has them.
  virtual void read(std::size_t offset, std::span<std::uint8_t> into) const = 0;
  /// Hint: these bytes will not be read again soon, so the process may drop their pages.
  virtual void release(std::size_t offset, std::size_t bytes) const = 0;
};

std::shared_ptr<const ByteSource> bytes_in_memory(std::vector<std::uint8_t> bytes);

/// Maps a file read-only. Only pages that are read take memory, and the system can reclaim them. The file may be
/// renamed or unlinked. A read throws if the file has become shorter, but cannot detect a truncation during the read
/// itself. Throws FileError.
std::shared_ptr<const ByteSource> mapped_file(const std::string& path);

/// Takes bytes one after another, to be read afterwards. Keeps up to `in_memory` bytes in memory. If there are more,
/// all go to a nameless file in $TMPDIR (default /tmp), which is deleted with its last reader.
class Spool {
 public:
  static constexpr std::size_t usual_memory = std::size_t{16} << 20;

  explicit Spool(std::size_t in_memory = usual_memory) : in_memory_(in_memory) {}
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  /// Throws FileError if the folder takes no file, or if the disk is full.
  void append(std::span<const std::uint8_t> bytes);
  std::size_t size() const { return written_ + buffer_.size(); }
  /// Returns all appended bytes and empties the spool.
  std::shared_ptr<const ByteSource> finish();

 private:
  void write_buffer();

  std::size_t in_memory_;
  std::vector<std::uint8_t> buffer_;
  std::size_t written_ = 0;  // to the file
  int descriptor_ = -1;
};

}  // namespace poolgrad::nn
