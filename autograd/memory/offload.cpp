#include "autograd/memory/offload.h"

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
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "tensor/host_bytes.h"

namespace poolgrad {
namespace {

/// Calls `step(at, left)` until [0, bytes) is done. It returns the bytes done, or 0 or less on failure. Returns 0 or
/// errno.
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

/// Returns the bytes of an extent in the file; an empty extent also has a place of its own.
std::size_t bytes_taken(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

/// The stream that copies a device's tensors out and back, parallel to other work.
constexpr std::uint64_t copy_stream_id = std::uint64_t{1} << 32;

/// Copies the tensor's bytes after the work of the stream that made them. The block is not reused before the copy is
/// done.
void copy_out_on_stream(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  CachingAllocator& pool = allocator_for(storage.device());
  const Stream copies{storage.device(), copy_stream_id};
  pool.order(copies, storage.stream());
  pool.use(storage.data(), copies);
}

/// Copies the bytes back after earlier work on the block, and before later work of its stream.
void copy_in_on_stream(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  CachingAllocator& pool = allocator_for(storage.device());
  const Stream copies{storage.device(), copy_stream_id};
  pool.order(copies, storage.stream());
  pool.memory().touch(storage.data(), storage.bytes(), copies, std::source_location::current());
  pool.order(storage.stream(), copies);
}

/// Copies of a GPU run on the current stream. Orders it after the stream that made the memory.
void order_behind_its_own(const Storage& storage) {
  const Stream current = current_stream(storage.device());
  if (storage.device().is_cuda() && current != storage.stream())
    allocator_for(storage.device()).order(current, storage.stream());
}

bool has_streams(Device device) { return allocator_for(device).memory().queues_work(); }

}  // namespace

OffloadFile::OffloadFile(const std::string& folder, int descriptor)
    : folder_(folder), descriptor_(descriptor), process_(::getpid()) {}

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

void OffloadFile::check_process() const {
  if (::getpid() != process_)
    throw FileError("[offload] the file belongs to the process that this one was forked from");
}

std::unique_ptr<const OffloadFile::Extent> OffloadFile::move_out(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  check_process();
  auto extent = reserve(storage.bytes(), storage.device().is_sim());
  if (storage.device().is_sim()) {
    if (has_streams(storage.device())) copy_out_on_stream(tensor);
    return extent;
  }
  order_behind_its_own(storage);
  read_bytes(whole_storage(tensor), [&, at = std::size_t{0}](const void* piece, std::size_t bytes) mutable {
    write(*extent, piece, std::exchange(at, at + bytes), bytes);
  });
  return extent;
}

void OffloadFile::bring_back(const Extent& extent, const Tensor& into) const {
  const Storage& storage = *into.storage();
  if (storage.device().is_sim()) {
    if (has_streams(storage.device())) copy_in_on_stream(into);
    return;
  }
  check_process();
  order_behind_its_own(storage);
  write_bytes(whole_storage(into), [&, at = std::size_t{0}](void* piece, std::size_t bytes) mutable {
    read(extent, piece, std::exchange(at, at + bytes), bytes);
  });
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
