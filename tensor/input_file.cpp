#include "tensor/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <system_error>
#include <vector>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "tensor/host_bytes.h"

namespace poolgrad {

static_assert(std::endian::native == std::endian::little, "file data is copied unchanged");

InputFile::InputFile(const char* op, const std::string& path)
    : op_(op), path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) fail(opening_failure(errno));
  struct stat status = {};
  const bool known = fstat(descriptor_, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  const std::string text = known ? "not a regular file" : opening_failure(errno);
  close(descriptor_);
  fail(text);
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) fail_at(size_, "the file ends in the middle of the data");
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, next, std::min(bytes, std::size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_at(offset, "cannot read: " + std::generic_category().message(errno));
    if (got == 0) fail_at(offset, "the file became shorter while it was read");
    next += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

std::string InputFile::read_text(std::uint64_t offset, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) fail_at(size_, "the file ends in the middle of the header");
  std::string text(bytes, '\0');
  read(offset, text.data(), bytes);
  return text;
}

Tensor InputFile::read_tensor(std::uint64_t offset, const Shape& shape, DType dtype, Device device) const {
  std::uint64_t bytes = 0;
  if (!tensor_bytes(shape, dtype, bytes) || offset > size_ || bytes > size_ - offset)
    fail_at(size_, "the file ends in the middle of the data");
  Tensor tensor = Tensor::empty(shape, {dtype, device});
  read_into(tensor, offset);
  return tensor;
}

void InputFile::read_into(const Tensor& tensor, std::uint64_t offset) const {
  write_bytes(tensor, [&](void* piece, std::size_t bytes) {
    read(offset, piece, bytes);
    if (tensor.dtype() == DType::boolean) refuse_other_than_bools(piece, bytes, offset);
    offset += bytes;
  });
}

void InputFile::check_bools(std::uint64_t offset, std::uint64_t bytes) const {
  std::vector<char> piece(std::min<std::uint64_t>(bytes, 1 << 16));
  for (; bytes > 0; bytes -= piece.size(), offset += piece.size()) {
    piece.resize(std::min<std::uint64_t>(bytes, piece.size()));
    read(offset, piece.data(), piece.size());
    refuse_other_than_bools(piece.data(), piece.size(), offset);
  }
}

void InputFile::refuse_other_than_bools(const void* data, std::size_t bytes, std::uint64_t offset) const {
  const auto* const begin = static_cast<const unsigned char*>(data);
  const unsigned char* wrong = std::find_if(begin, begin + bytes, [](unsigned char byte) { return byte > 1; });
  if (wrong != begin + bytes)
    fail_at(offset + static_cast<std::uint64_t>(wrong - begin), "a bool of value " + std::to_string(*wrong));
}

void fail_file(const char* op, const std::string& path, const std::string& reason) {
  throw FileError("[" + std::string(op) + "] " + printable_path(path) + ": " + reason);
}

void InputFile::fail(const std::string& reason) const { fail_file(op_, path_, reason); }

void InputFile::fail_at(std::uint64_t offset, const std::string& reason) const {
  fail(reason + " (at byte " + std::to_string(offset) + ")");
}

bool tensor_bytes(const Shape& shape, DType dtype, std::uint64_t& bytes) {
  try {
    const auto elements = static_cast<std::uint64_t>(count(shape));
    bytes = elements * size_of(dtype);
    return elements <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / size_of(dtype);
  } catch (const ShapeError&) {
    return false;
  }
}

}  // namespace poolgrad
