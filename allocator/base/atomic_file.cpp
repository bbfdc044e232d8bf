#include "allocator/base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

/// Best effort: the rename is on disk only after its folder is; not every file system allows the call.
void sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

constexpr const char* temporary_ending = ".tmp.";

/// Whether `name` is that of a temporary of `target`: "target.tmp.<process>.<number>".
bool is_temporary_of(const std::string& target, const std::string& name) {
  const std::string start = target + temporary_ending;
  return name.starts_with(start) && name.size() > start.size() &&
         name.find_first_not_of("0123456789.", start.size()) == std::string::npos;
}

}  // namespace

std::string target_of(const std::string& path) {
  constexpr int most_links = 40;  // the limit of Linux
  std::filesystem::path target = path;
  for (int i = 0; i <= most_links; ++i) {
    std::error_code is_none;
    const std::filesystem::path next = std::filesystem::read_symlink(target, is_none);
    if (is_none) return target.string();
    target = target.parent_path() / next;  // which may be absolute
  }
  throw FileError("[write] " + printable_path(path) + ": " + std::generic_category().message(ELOOP));
}

std::string opening_failure(int error) {
  return error == ENOENT ? "does not exist" : "cannot open: " + std::generic_category().message(error);
}

void remove_abandoned_temporaries(const std::string& path) {
  const std::filesystem::path target = target_of(path), folder = target.parent_path();
  std::error_code error;
  std::filesystem::directory_iterator entries(folder.empty() ? "." : folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (!is_temporary_of(target.filename(), entries->path().filename())) continue;
    const int descriptor = open(entries->path().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) unlink(entries->path().c_str());
    close(descriptor);
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(target_of(path)) {
  struct stat old = {};
  const bool replaces = stat(path_.c_str(), &old) == 0;
  if (replaces && !S_ISREG(old.st_mode)) throw FileError("[write] " + printable_path(path_) + ": not a regular file");

  remove_abandoned_temporaries(path_);
  static std::atomic<unsigned> number{0};
  struct stat made = {};
  do {
    if (descriptor_ >= 0) close(descriptor_);
    temporary_ = path_ + temporary_ending + std::to_string(getpid()) + "." + std::to_string(number++);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    // Before the lock, another process may have taken the file for abandoned and unlinked it.
    if (descriptor_ >= 0) flock(descriptor_, LOCK_EX | LOCK_NB);
  } while (descriptor_ < 0 ? errno == EEXIST || errno == EINTR : fstat(descriptor_, &made) == 0 && made.st_nlink == 0);
  if (descriptor_ < 0) fail("cannot create a temporary file beside it");
  if (replaces) fchmod(descriptor_, old.st_mode & 07777);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) const {
  const int error = errno;
  throw FileError("[write] " + printable_path(path_) + ": " + what + ": " + std::generic_category().message(error));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot write");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0) fail("cannot sync");
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (close(descriptor) != 0) fail("cannot close");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename the temporary file");
  temporary_.clear();
  sync_folder_of(path_);
}

void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces) {
  AtomicFile file(path);
  for (std::string_view piece : pieces) file.write(piece);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::span(&text, 1));
}

}  // namespace poolgrad
