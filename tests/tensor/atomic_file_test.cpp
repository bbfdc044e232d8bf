#include "allocator/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "tensor/creation.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using namespace testing_support;
using testing::ElementsAre;

/// While alive no file of this process grows beyond `bytes`: writing fails as on a full disk.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit previous_ = {};
  void (*handler_)(int);
};

TEST(AtomicFile, AppearsWithAllItsParts) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const std::string_view pieces[] = {"one, ", "", "two"};
  write_file_atomically(path, pieces);
  EXPECT_EQ(read_bytes(path), "one, two");
  write_file_atomically(path, "short");
  EXPECT_EQ(read_bytes(path), "short");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(AtomicFile, AppearsOnlyOnCommit) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  write_bytes(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(read_bytes(path), "old");
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(read_bytes(path), "old") << "never committed";
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(AtomicFile, KeepsTwoWritersApart) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  AtomicFile first(path), second(path);
  first.write("first");
  second.write("second");
  second.commit();
  EXPECT_EQ(read_bytes(path), "second");
  first.commit();
  EXPECT_EQ(read_bytes(path), "first");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(AtomicFile, KeepsTheOldFileOnAFullDisk) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  write_bytes(path, "old");
  {
    const SmallDisk disk(1000);
    EXPECT_EQ(error_of<FileError>([&] { write_file_atomically(path, std::string(2000, 'x')); }),
              "[write] " + path + ": cannot write: File too large");
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(AtomicFile, KeepsTheOldCheckpointOnAFullDisk) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  save_safetensors(path, {{{"x", ones({4})}}, {}});
  {
    const SmallDisk disk(5000);
    EXPECT_EQ(error_of<FileError>([&] {
                save_safetensors(path, {{{"x", ones({4000})}}, {}});
              }),
              "[write] " + path + ": cannot write: File too large");
  }
  EXPECT_EQ(load_safetensors(path).at("x").numel(), 4);
  EXPECT_THAT(folder.names(), ElementsAre("model.safetensors"));
  save_safetensors(path, {{{"x", ones({4000})}}, {}});
  EXPECT_EQ(load_safetensors(path).at("x").numel(), 4000) << "room again";
}

TEST(AtomicFile, KeepsThePermissionsOfTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  write_bytes(path, "old");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  write_file_atomically(path, "new");
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0640u);
}

TEST(AtomicFile, FollowsASymbolicLink) {
  const TemporaryFolder folder;
  write_bytes(folder.file("step100"), "old");
  std::filesystem::create_symlink("step100", folder.file("latest"));
  write_file_atomically(folder.file("latest"), "new");
  EXPECT_EQ(read_bytes(folder.file("step100")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("latest")));
}

TEST(AtomicFile, FollowsLinksToAMissingFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("large"));
  std::filesystem::create_symlink("large/step100", folder.file("latest"));
  std::filesystem::create_symlink(folder.file("latest"), folder.file("newest"));
  write_file_atomically(folder.file("newest"), "new");
  EXPECT_EQ(read_bytes(folder.file("large/step100")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("newest")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("latest")));
}

TEST(AtomicFile, RejectsCircularLinks) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder.file("b"), folder.file("a"));
  std::filesystem::create_symlink(folder.file("a"), folder.file("b"));
  EXPECT_EQ(error_of<FileError>([&] { write_file_atomically(folder.file("a"), "new"); }),
            "[write] " + folder.file("a") + ": Too many levels of symbolic links");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("a")));
  EXPECT_THAT(folder.names(), ElementsAre("a", "b"));
}

TEST(AtomicFile, ReportsTheReasonForAFailure) {
  const TemporaryFolder folder;
  const std::string inside = folder.file("none/a");
  EXPECT_EQ(error_of<FileError>([&] { write_file_atomically(inside, "x"); }),
            "[write] " + inside + ": cannot create a temporary file beside it: No such file or directory");
  std::filesystem::create_directory(folder.file("folder"));
  EXPECT_EQ(error_of<FileError>([&] { write_file_atomically(folder.file("folder"), "x"); }),
            "[write] " + folder.file("folder") + ": not a regular file");
  EXPECT_EQ(error_of<FileError>([] { write_file_atomically("/dev/null", "x"); }),
            "[write] /dev/null: not a regular file");
  EXPECT_THAT(folder.names(), ElementsAre("folder"));
}

}  // namespace
}  // namespace poolgrad
