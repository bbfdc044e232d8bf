// Bytes moved out of memory into a file that nobody else sees and that is gone with the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace poolgrad {

/// Extents keep their file; space that is given back is used again, lowest first. reason() and write() are for one
/// thread at a time.
class OffloadFile : public std::enable_shared_from_this<OffloadFile> {
 public:
  /// A nameless file in `folder`. Throws FileError where there can be none: a folder that is missing or read-only.
  static std::shared_ptr<OffloadFile> in(const std::string& folder);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// A place in the file; given back when it is destroyed.
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

  /// `from` may be nullptr: then only a place is taken, as for a device without bytes. nullptr where the file cannot
  /// take them, a full disk say; reason() then tells why, and the file stays as it was.
  std::unique_ptr<const Extent> write(const void* from, std::size_t bytes);
  /// All bytes of an extent of this file that were written. Throws FileError.
  void read(const Extent& extent, void* to) const;
  const std::string& reason() const { return reason_; }
  /// In use now, and at most.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  OffloadFile(const std::string& folder, int descriptor) : folder_(folder), descriptor_(descriptor) {}
  std::uint64_t take(std::size_t bytes);
  void give_back(std::uint64_t offset, std::size_t bytes);

  std::string folder_, reason_;
  int descriptor_;
  std::mutex mutex_;  // of what follows
  std::uint64_t end_ = 0, bytes_ = 0, peak_bytes_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes, never side by side
};

}  // namespace poolgrad
