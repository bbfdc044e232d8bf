#include "autograd/memory/offload_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad {
namespace {

/// Works through [0, bytes) by `step(at, left)`, which returns what it did, 0 or less where it cannot. 0 or errno.
template <class Step>
int in_steps(std::size_t bytes, const Step& step) {
  for (std::size_t done = 0; done < bytes;) {
    const ::ssize_t more = step(done, bytes - done);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return more < 0 ? errno : EIO;
    done += static_cast<std::size_t>(more);
  }
  return 0;
}

/// What an extent takes of the file: an empty one has a place of its own, too.
std::size_t bytes_taken(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

}  // namespace

std::shared_ptr<OffloadFile> OffloadFile::in(const std::string& folder) {
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without nameless files
    std::string path = folder + "/poolgrad-offload-XXXXXX";
    descriptor = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor >= 0) ::unlink(path.c_str());
  }
  if (descriptor < 0)
    throw FileError(
        fmt::format("[offload] cannot make a file in the folder {}: {}", printable_path(folder), std::strerror(errno)));
  return std::shared_ptr<OffloadFile>(new OffloadFile(folder, descriptor));
}

OffloadFile::~OffloadFile() { ::close(descriptor_); }

OffloadFile::Extent::~Extent() { file_->give_back(offset_, bytes_taken(bytes_)); }

std::unique_ptr<const OffloadFile::Extent> OffloadFile::reserve(std::size_t bytes, bool without_bytes) {
  std::unique_ptr<const Extent> extent(new Extent(shared_from_this(), take(bytes_taken(bytes)), bytes));
  if (without_bytes) return extent;
  int error = EINTR;
  while (error == EINTR)
    error =
        ::posix_fallocate(descriptor_, static_cast<::off_t>(extent->offset_), static_cast<::off_t>(bytes_taken(bytes)));
  if (error != 0) refuse("find room for", bytes, error);
  return extent;
}

void OffloadFile::write(const Extent& extent, const void* from, std::size_t offset, std::size_t bytes) const {
  const std::size_t begin = extent.offset_ + offset;
  const int error = in_steps(bytes, [&](std::size_t at, std::size_t left) {
    return ::pwrite(descriptor_, static_cast<const char*>(from) + at, left, static_cast<::off_t>(begin + at));
  });
  if (error != 0) refuse("write", extent.bytes_, error);
}

void OffloadFile::read(const Extent& extent, void* to, std::size_t offset, std::size_t bytes) const {
  const std::size_t begin = extent.offset_ + offset;
  const int error = in_steps(bytes, [&](std::size_t at, std::size_t left) {
    return ::pread(descriptor_, static_cast<char*>(to) + at, left, static_cast<::off_t>(begin + at));
  });
  if (error != 0) refuse("read", extent.bytes_, error);
}

void OffloadFile::refuse(const char* what, std::size_t bytes, int error) const {
  throw FileError(fmt::format("[offload] cannot {} {} bytes in a file in the folder {}: {}", what, bytes,
                              printable_path(folder_), std::strerror(error)));
}

std::uint64_t OffloadFile::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::uint64_t OffloadFile::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  for (auto place = free_.begin(); place != free_.end(); ++place) {
    const auto [offset, room] = *place;
    if (room < bytes) continue;
    free_.erase(place);
    if (room > bytes) free_.emplace(offset + bytes, room - bytes);
    return offset;
  }
  return std::exchange(end_, end_ + bytes);
}

void OffloadFile::give_back(std::uint64_t offset, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ -= bytes;
  std::uint64_t first = offset, last = offset + bytes;
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == last) {
    last += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin())
    if (const auto before = std::prev(after); before->first + before->second == first) {
      first = before->first;
      free_.erase(before);
    }
  if (last == end_)
    end_ = first;
  else
    free_.emplace(first, last - first);
}

}  // namespace poolgrad
