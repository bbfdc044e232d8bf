#include "allocator/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "allocator/error.h"

namespace poolgrad {
namespace {

namespace fs = std::filesystem;

class AtomicFiles : public ::testing::Test {
 protected:
  AtomicFiles() {
    std::string folder = fs::temp_directory_path() / "poolgrad-XXXXXX";
    folder_ = ::mkdtemp(folder.data());
  }
  ~AtomicFiles() override { fs::remove_all(folder_); }

  std::string file(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name) const { std::ofstream(file(name)) << name; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_;
};

TEST_F(AtomicFiles, RemoveTheTemporaryFileOfAKilledProcess) {
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile half(file("state"));
    half.write("half");
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_THAT(names(), ::testing::ElementsAre("state.tmp." + std::to_string(child) + ".0"));

  write_file_atomically(file("state"), "whole");
  EXPECT_THAT(names(), ::testing::ElementsAre("state"));
}

TEST_F(AtomicFiles, KeepTheTemporaryFilesOfWritersAndOfOtherFiles) {
  for (const char* other : {"state.tmp.1.0", "state.tmp.", "state.tmp.1.old", "other.tmp.1.0", "xstate.tmp.1.0"})
    write(other);
  fs::create_directory(file("state.tmp.2.0"));
  fs::create_symlink("other.tmp.1.0", file("state.tmp.3.0"));
  AtomicFile written(file("state"));
  const std::size_t before = names().size();

  remove_abandoned_temporaries(file("state"));
  EXPECT_EQ(names().size(), before) << "one that was there had been removed by the constructor";
  EXPECT_THAT(names(), ::testing::Not(::testing::Contains("state.tmp.1.0")));
  for (const char* other :
       {"state.tmp.", "state.tmp.1.old", "other.tmp.1.0", "xstate.tmp.1.0", "state.tmp.2.0", "state.tmp.3.0"})
    EXPECT_THAT(names(), ::testing::Contains(other));
  written.write("whole");
  written.commit();
  EXPECT_TRUE(fs::is_regular_file(file("state")));
  EXPECT_NO_THROW(remove_abandoned_temporaries("/nowhere/state"));
}

TEST_F(AtomicFiles, AreFoundThroughALinkAndInTheCurrentFolder) {
  fs::create_directory(file("there"));
  fs::create_symlink("there/state", file("link"));
  write("there/state.tmp.1.0");
  remove_abandoned_temporaries(file("link"));
  EXPECT_FALSE(fs::exists(file("there/state.tmp.1.0")));

  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  write("state.tmp.1.0");
  remove_abandoned_temporaries("state");
  fs::current_path(before);
  EXPECT_FALSE(fs::exists(file("state.tmp.1.0")));
}

TEST(OpeningFailure, SaysThatAFileDoesNotExist) {
  EXPECT_EQ(opening_failure(ENOENT), "does not exist");
  EXPECT_EQ(opening_failure(EACCES), "cannot open: Permission denied");
}

}  // namespace
}  // namespace poolgrad
