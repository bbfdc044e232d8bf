// A regular file opened for reading, of known length. Every error has the path and, if known, the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace poolgrad {

/// Throws FileError: `[op] path: reason`.
[[noreturn]] void fail_file(const char* op, const std::string& path, const std::string& reason);

class InputFile {
 public:
  /// `op` starts every error text. Throws FileError.
  InputFile(const char* op, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const { return size_; }
  /// Reads bytes [offset, offset + bytes). Throws FileError past the end of the file.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;
  std::string read_text(std::uint64_t offset, std::size_t bytes) const;
  /// Returns a row-major tensor of the bytes at `offset`. Throws FileError for a bool that is neither 0 nor 1.
  Tensor read_tensor(std::uint64_t offset, const Shape& shape, DType dtype, Device device) const;
  /// Reads into an existing tensor; leaves one of a simulated device unchanged.
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

/// Sets `bytes` to the size of a tensor. Returns false beyond 2^63 - 1.
bool tensor_bytes(const Shape& shape, DType dtype, std::uint64_t& bytes);

}  // namespace poolgrad
