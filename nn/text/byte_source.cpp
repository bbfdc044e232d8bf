#include "nn/text/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::nn {

namespace {

constexpr std::size_t written_at_once = std::size_t{1} << 20;

class Memory : public ByteSource {
 public:
  explicit Memory(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}
  std::size_t size() const override { return bytes_.size(); }
  void read(std::size_t offset, std::span<std::uint8_t> into) const override {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  }
  void release(std::size_t, std::size_t) const override {}

 private:
  std::vector<std::uint8_t> bytes_;
};

/// Owns a file descriptor and closes it.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void refuse(const std::string& what, const std::string& path, int error) {
  throw FileError(fmt::format("[train] cannot {} {}: {}", what, printable_path(path), std::strerror(error)));
}

class Mapping : public ByteSource {
 public:
  /// `path` is empty for a nameless file.
  Mapping(int descriptor, std::string path) : path_(std::move(path)) {
    struct ::stat status {};
    if (::fstat(descriptor, &status) != 0) refuse("read", path_, errno);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;
    void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) refuse("map", path_.empty() ? "a nameless file" : path_, errno);
    bytes_ = static_cast<const std::uint8_t*>(mapped);
  }
  ~Mapping() override {
    if (size_ > 0) ::munmap(const_cast<std::uint8_t*>(bytes_), size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::size_t size() const override { return size_; }

  void read(std::size_t offset, std::span<std::uint8_t> into) const override {
    check_length(offset + into.size());
    if (!into.empty()) std::memcpy(into.data(), bytes_ + offset, into.size());
  }

  void release(std::size_t offset, std::size_t bytes) const override {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t begin = offset / page * page;
    if (bytes > 0) ::madvise(const_cast<std::uint8_t*>(bytes_) + begin, offset + bytes - begin, MADV_DONTNEED);
  }

 private:
  /// Access to pages past the end of a truncated file raises SIGBUS. Checks by path, since one descriptor for each file
  /// of a large text would be too many. A file that was renamed or unlinked passes the check: its mapping is unchanged.
  void check_length(std::size_t needed) const {
    struct ::stat status {};
    if (path_.empty() || ::stat(path_.c_str(), &status) != 0) return;
    if (status.st_dev != device_ || status.st_ino != inode_) return;
    if (const auto now = static_cast<std::size_t>(status.st_size); now < needed)
      throw FileError(fmt::format("[train] {} became shorter while it was read: {} bytes of {}", printable_path(path_),
                                  now, size_));
  }

  std::string path_;
  ::dev_t device_{};
  ::ino_t inode_{};
  std::size_t size_ = 0;
  const std::uint8_t* bytes_ = nullptr;
};

std::string temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder == nullptr || *folder == '\0' ? "/tmp" : folder;
}

int nameless_file() {
  const std::string folder = temporary_folder();
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without nameless files
    std::string path = folder + "/poolgrad-text-XXXXXX";
    descriptor = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor >= 0) ::unlink(path.c_str());
  }
  if (descriptor < 0) refuse("make a file for text in the folder", folder + " (TMPDIR)", errno);
  return descriptor;
}

}  // namespace

std::shared_ptr<const ByteSource> bytes_in_memory(std::vector<std::uint8_t> bytes) {
  return std::make_shared<const Memory>(std::move(bytes));
}

std::shared_ptr<const ByteSource> mapped_file(const std::string& path) {
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) refuse("read", path, errno);
  return std::make_shared<const Mapping>(descriptor.get(), std::filesystem::absolute(path).string());
}

Spool::~Spool() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Spool::append(std::span<const std::uint8_t> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() > (descriptor_ < 0 ? in_memory_ : std::min(in_memory_, written_at_once))) write_buffer();
}

void Spool::write_buffer() {
  if (descriptor_ < 0) descriptor_ = nameless_file();
  for (std::size_t done = 0; done < buffer_.size();) {
    const ::ssize_t more = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0)
      refuse(fmt::format("write {} bytes of text to the folder", size()), temporary_folder() + " (TMPDIR)",
             more < 0 ? errno : EIO);
    done += static_cast<std::size_t>(more);
  }
  written_ += buffer_.size();
  buffer_ = {};
}

std::shared_ptr<const ByteSource> Spool::finish() {
  if (descriptor_ < 0) return bytes_in_memory(std::exchange(buffer_, {}));
  write_buffer();
  const Descriptor descriptor(std::exchange(descriptor_, -1));
  written_ = 0;
  buffer_ = {};
  return std::make_shared<const Mapping>(descriptor.get(), "");
}

}  // namespace poolgrad::nn
