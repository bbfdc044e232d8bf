// Bytes moved out of memory into a file that nobody else sees and that is gone with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "allocator/base/fork.h"

namespace poolgrad {

/// Extents keep their file; space that is given back is used again, lowest first. All may be called from any thread.
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

  /// With its space on the disk, so that a full one is known here and not when bytes are written; `without_bytes`
  /// takes a place alone, as for a device that has none. Throws FileError; the file stays as it was.
  std::unique_ptr<const Extent> reserve(std::size_t bytes, bool without_bytes = false);
  /// All bytes of an extent of this file, or `bytes` from `offset` on. Throw FileError.
  void write(const Extent& extent, const void* from) const { write(extent, from, 0, extent.bytes_); }
  void read(const Extent& extent, void* to) const { read(extent, to, 0, extent.bytes_); }
  void write(const Extent& extent, const void* from, std::size_t offset, std::size_t bytes) const;
  void read(const Extent& extent, void* to, std::size_t offset, std::size_t bytes) const;
  /// In use.
  std::uint64_t bytes() const;

 private:
  OffloadFile(const std::string& folder, int descriptor) : folder_(folder), descriptor_(descriptor) {}
  std::uint64_t take(std::size_t bytes);
  [[noreturn]] void refuse(const char* what, std::size_t bytes, int error) const;
  void give_back(std::uint64_t offset, std::size_t bytes);

  std::string folder_;
  int descriptor_;
  mutable ForkMutex mutex_;  // of what follows
  std::uint64_t end_ = 0, bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes, never side by side
};

}  // namespace poolgrad
