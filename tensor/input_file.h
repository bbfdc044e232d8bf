// A regular file opened for reading, of known length. Every error names the path, and the offset where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace poolgrad {

class InputFile {
 public:
  /// `op` begins every error text. Throws FileError.
  InputFile(const char* op, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const { return size_; }
  /// Bytes [offset, offset + bytes); throws FileError where the file ends before.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;
  std::string read_text(std::uint64_t offset, std::size_t bytes) const;
  /// A row-major tensor whose bytes begin at `offset`. Throws FileError for a bool that is neither 0 nor 1.
  Tensor read_tensor(std::uint64_t offset, const Shape& shape, DType dtype, Device device) const;
  /// The same into a tensor that is there; one of a simulated device stays as it is.
  void read_into(const Tensor& tensor, std::uint64_t offset) const;
  /// Throws FileError for a byte of [offset, offset + bytes) that is neither 0 nor 1.
  void check_bools(std::uint64_t offset, std::uint64_t bytes) const;

  [[noreturn]] void fail(const std::string& reason) const;
  [[noreturn]] void fail_at(std::uint64_t offset, const std::string& reason) const;

 private:
  void refuse_other_than_bools(const void* data, std::size_t bytes, std::uint64_t offset) const;

  const char* op_;
  std::string path_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

/// Bytes of a tensor of that shape; nothing where they exceed 2^63 - 1.
bool tensor_bytes(const Shape& shape, DType dtype, std::uint64_t& bytes);

}  // namespace poolgrad
