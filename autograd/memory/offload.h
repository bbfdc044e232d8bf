// Moves the memory of tensors out to a nameless file, which is deleted with the process, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "allocator/base/fork.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Extents keep their file alive. Freed space is reused, lowest offset first. Any thread may call any function.
///
/// The host writes and reads synchronously, up to 2 MiB at a time from and to a GPU. Simulated devices have no bytes
/// and only take places in the file. If their work waits in streams, copies run on a stream of their own, which the
/// pool knows, so that it reuses no block during a copy. A child of fork() can neither write nor read: the file belongs
/// to its parent.
class OffloadFile : public std::enable_shared_from_this<OffloadFile> {
 public:
  /// Creates a nameless file in `folder`. Throws FileError for a missing or read-only folder, or if the file system
  /// refuses.
  static std::shared_ptr<OffloadFile> in(const std::string& folder);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// A place in the file of at least one byte; the destructor frees it.
  class Extent {
   public:
    ~Extent();
    Extent(const Extent&) = delete;
    Extent& operator=(const Extent&) = delete;

   private:
    friend class OffloadFile;
    Extent(std::shared_ptr<OffloadFile> file, std::uint64_t offset, std::size_t bytes)
        : file_(std::move(file)), offset_(offset), bytes_(bytes) {}
    std::shared_ptr<OffloadFile> file_;
    std::uint64_t offset_;
    std::size_t bytes_;
  };

  /// Reserves a place and its space on the disk, so that a full disk is detected before writing. With `without_bytes`,
  /// reserves the place only. Throws FileError; the file is then unchanged.
  std::unique_ptr<const Extent> reserve(std::size_t bytes, bool without_bytes = false);
  /// Copy `bytes` of an extent of this file, starting at `offset`. Throw FileError.
  void write(const Extent& extent, const void* from, std::size_t offset, std::size_t bytes) const;
  void read(const Extent& extent, void* to, std::size_t offset, std::size_t bytes) const;
  /// Writes the tensor's whole storage; afterwards the tensor may be freed. Throws FileError, for instance on a full
  /// disk.
  std::unique_ptr<const Extent> move_out(const Tensor& tensor);
  /// Fills the tensor's whole storage with the bytes that moved out. Throws FileError.
  void bring_back(const Extent& extent, const Tensor& into) const;
  /// Returns the bytes in use.
  std::uint64_t bytes() const;

 private:
  OffloadFile(const std::string& folder, int descriptor);
  void check_process() const;
  std::uint64_t take(std::size_t bytes);
  [[noreturn]] void refuse(const char* what, std::size_t bytes, int error) const;
  void give_back(std::uint64_t offset, std::size_t bytes);

  std::string folder_;
  int descriptor_;
  const int process_;
  mutable ForkMutex mutex_;  // guards the members below
  std::uint64_t end_ = 0, bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes, merged with neighbors
};

}  // namespace poolgrad
