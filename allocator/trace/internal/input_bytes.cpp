#include "allocator/trace/internal/input_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "allocator/error.h"

namespace poolgrad {

namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : value_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::string read_whole_file(const std::string& path) {
  const auto fail = [&](const std::string& reason) {
    throw FileError("[read] " + path + ": " + reason + ": " + std::generic_category().message(errno));
  };
  const Descriptor file(path);
  struct stat status = {};
  if (file.value() < 0 || fstat(file.value(), &status) != 0) fail("cannot open");
  if (!S_ISREG(status.st_mode)) throw FileError("[read] " + path + ": not a regular file");
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file.value(), bytes.data() + done, std::min(bytes.size() - done, std::size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read");
    if (got == 0) throw FileError("[read] " + path + ": became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace poolgrad
