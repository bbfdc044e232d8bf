// Memory of tensors moved out to a nameless file, which is gone with the process, and back.
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

/// Extents keep their file. Freed space is used again, lowest offset first. Every function may be called from any
/// thread.
///
/// The host writes and reads at once, up to 2 MiB at a time from and to a GPU. Simulated devices have no bytes: they
/// take places in the file alone. Where their work waits in streams, copies have a stream of their own and the pool
/// knows it, so that it reuses no block under a copy. A child of fork() can neither write nor read: the file is its
/// parent's.
class OffloadFile : public std::enable_shared_from_this<OffloadFile> {
 public:
  /// A nameless file in `folder`. Throws FileError where there can be none: a folder that is missing or read-only.
  static std::shared_ptr<OffloadFile> in(const std::string& folder);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// A place in the file of one byte or more; given back when it is destroyed.
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

  /// With its space on the disk, so that a full disk is known before bytes are written; `without_bytes` takes a place
  /// alone. Throws FileError; the file stays as it was.
  std::unique_ptr<const Extent> reserve(std::size_t bytes, bool without_bytes = false);
  /// Copy `bytes` from `offset` of an extent of this file on. Throw FileError.
  void write(const Extent& extent, const void* from, std::size_t offset, std::size_t bytes) const;
  void read(const Extent& extent, void* to, std::size_t offset, std::size_t bytes) const;
  /// Writes all of the tensor's storage; afterwards the tensor may be freed. Throws FileError, for instance where the
  /// disk is full.
  std::unique_ptr<const Extent> move_out(const Tensor& tensor);
  /// Fills all of the tensor's storage with the bytes that moved out. Throws FileError.
  void bring_back(const Extent& extent, const Tensor& into) const;
  /// In use.
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
  mutable ForkMutex mutex_;  // of what follows
  std::uint64_t end_ = 0, bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes, never side by side
};

}  // namespace poolgrad
