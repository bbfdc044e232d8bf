// Bytes to read from anywhere: memory, a file that is mapped, or a spool: what does not fit into memory goes to a
// nameless file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace poolgrad::nn {

/// So many bytes, the same ones whenever they are read.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::size_t size() const = 0;
  /// Copies the bytes from `offset` on, which must be there. Throws FileError where a file no longer has them.
  virtual void read(std::size_t offset, std::span<std::uint8_t> into) const = 0;
  /// These bytes will not be read again soon: they need no memory of this process.
  virtual void release(std::size_t offset, std::size_t bytes) const = 0;
};

std::shared_ptr<const ByteSource> bytes_in_memory(std::vector<std::uint8_t> bytes);

/// A file, mapped read-only: what is not read takes no memory, and what is read can be taken back by the system. It may
/// lose its name meanwhile; one that has become shorter is noticed when it is read, unless in that very moment. Throws
/// FileError.
std::shared_ptr<const ByteSource> mapped_file(const std::string& path);

/// Bytes that are written one after another, and then read. Up to `in_memory` of them are kept there; of more, all go
/// to a nameless file in $TMPDIR (/tmp), which is gone with the last that reads it.
class Spool {
 public:
  static constexpr std::size_t usual_memory = std::size_t{16} << 20;

  explicit Spool(std::size_t in_memory = usual_memory) : in_memory_(in_memory) {}
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  /// Throws FileError where the folder takes no file, or no more.
  void append(std::span<const std::uint8_t> bytes);
  std::size_t size() const { return written_ + buffer_.size(); }
  /// All that was appended; the spool is empty again.
  std::shared_ptr<const ByteSource> finish();

 private:
  void write_buffer();

  std::size_t in_memory_;
  std::vector<std::uint8_t> buffer_;
  std::size_t written_ = 0;  // to the file
  int descriptor_ = -1;
};

}  // namespace poolgrad::nn
