#include "nn/training/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "tests/process_guards.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

TEST(Progress, ShowsDurationsCountsAndCurves) {
  EXPECT_EQ(format_duration(7.2), "0:07");
  EXPECT_EQ(format_duration(151), "2:31");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_milliseconds(153.2), "153");
  EXPECT_EQ(format_milliseconds(5.26), "5.3");
  EXPECT_EQ(format_milliseconds(0.421), "0.42");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(33312), "33.3k");
  EXPECT_EQ(format_count(1234567), "1.23M");
  EXPECT_EQ(sparkline({3, 2, 1}), "█▄▁");
  EXPECT_EQ(sparkline({1, 1}), "▁▁");
  EXPECT_EQ(sparkline({}), "");
  EXPECT_EQ(sparkline(std::vector<double>(1000, 2.0), 5), "▁▁▁▁▁");
  EXPECT_EQ(bar(0.5, 10), "[#####-----]");
  EXPECT_EQ(bar(2.0, 4), "[####]");
}

TEST(Progress, DrawsALiveLineOnlyOnRequest) {
  std::ostringstream plain, live;
  {
    Progress a(plain, false), b(live, true);
    for (Progress* progress : {&a, &b}) {
      progress->status("working");
      progress->line("done");
    }
  }
  EXPECT_EQ(plain.str(), "done\n");
  EXPECT_EQ(live.str(), "\r\x1b[Kworking\r\x1b[Kdone\n");
}

TEST(ScopeStatus, ShowsTheScopeOfItsThread) {
  std::ostringstream live;
  Progress progress(live, true);
  {
    const ScopeStatus status(progress, "step 1/2", 0);
    std::thread([] { const MemoryScope scope("other_thread"); }).join();
    EXPECT_EQ(live.str(), "");
    const MemoryScope outer(Category::temp), inner("block3");
    EXPECT_EQ(live.str(), "\r\x1b[Kstep 1/2  0:00  block3");
  }
  const std::string drawn = live.str();
  const MemoryScope later("block4");
  EXPECT_EQ(live.str(), drawn);
}

TEST(ScopeStatus, ShowsTheFullPathOfAReenteredScope) {
  Tag tag;
  {
    const MemoryScope model("model"), block("block3");
    tag = current_tag();
  }
  std::ostringstream live;
  Progress progress(live, true);
  const ScopeStatus status(progress, "step 1/2", 0);
  const MemoryScope again(tag);
  EXPECT_EQ(live.str(), "\r\x1b[Kstep 1/2  0:00  model.block3");
}

TEST(ScopeStatus, ShowsNothingBeforeItsDelay) {
  std::ostringstream live;
  Progress progress(live, true);
  const ScopeStatus status(progress, "step 1/2", 3600);
  const MemoryScope scope("model");
  EXPECT_EQ(live.str(), "");
}

TEST(ScopeStatus, ForwardsScopesToTheEarlierListener) {
  struct Names : ScopeListener {
    void begins(std::string_view name) noexcept override { began += name; }
    void ends() noexcept override { began += ';'; }
    std::string began;
  };
  static Names names;
  ScopeListener* const before = listen_to_scopes(&names);
  {
    std::ostringstream live;
    Progress progress(live, true);
    const ScopeStatus status(progress, "step 1/2");
    const MemoryScope scope("a");
  }
  { const MemoryScope scope("b"); }
  EXPECT_EQ(listen_to_scopes(before), &names);
  EXPECT_EQ(names.began, "a;b;");
}

TEST(InterruptGuard, TreatsAHangupAsARequestUnlessIgnored) {
  const auto before = std::signal(SIGHUP, SIG_DFL);  // ignored where the test runs under nohup
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);  // ends the process unless a handler is set
    EXPECT_TRUE(InterruptGuard::interrupted());
  }
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  {
    const InterruptGuard guard;
    std::raise(SIGHUP);
    EXPECT_FALSE(InterruptGuard::interrupted());
  }
  EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN) << "and so it stays";
}

TEST(InterruptGuard, TreatsRepeatedSIGUSR1AsOneRequest) {
  const InterruptGuard guard;
  for (int i = 0; i < 3; ++i) std::raise(SIGUSR1);
  EXPECT_TRUE(InterruptGuard::interrupted());
}

TEST(InterruptGuard, TreatsABrokenPipeAsARequestButNotAFullFile) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGXFSZ);  // each ends the process unless a handler is set
    EXPECT_FALSE(InterruptGuard::interrupted());
    for (int line = 0; line < 3; ++line) std::raise(SIGPIPE);
    EXPECT_TRUE(InterruptGuard::interrupted());
  }
  EXPECT_EQ(std::signal(SIGPIPE, before), SIG_IGN) << "as it was";
  EXPECT_EQ(std::signal(SIGXFSZ, SIG_DFL), SIG_DFL);
}

TEST(InterruptGuard, RestoresTheHandlersOfTheProgram) {
  static int own = 0;
  const auto before = std::signal(SIGINT, [](int) { ++own; });
  const auto before_terminated = std::signal(SIGTERM, SIG_IGN);
  {
    const InterruptGuard guard;
    std::raise(SIGINT);
    EXPECT_TRUE(InterruptGuard::interrupted());
  }
  std::raise(SIGINT);
  std::raise(SIGTERM);  // ends the process unless it is ignored again
  EXPECT_EQ(own, 1);
  std::signal(SIGINT, before);
  std::signal(SIGTERM, before_terminated);
}

TEST(InterruptGuard, NestedGuardsShareTheRequest) {
  const InterruptGuard outer;
  {
    const InterruptGuard inner;
    EXPECT_FALSE(InterruptGuard::interrupted());
    std::raise(SIGINT);
    EXPECT_TRUE(InterruptGuard::interrupted());
  }
  EXPECT_TRUE(InterruptGuard::interrupted()) << "what stopped the inner work stops the outer, too";
  { const InterruptGuard next; }
  EXPECT_TRUE(InterruptGuard::interrupted()) << "work that begins afterwards";
}

TEST(InterruptGuard, ListensAfterANestedGuardEnds) {
  const InterruptGuard outer;
  { const InterruptGuard inner; }
  std::raise(SIGTERM);  // ends the process unless a handler is set
  EXPECT_TRUE(InterruptGuard::interrupted());
  InterruptGuard::forget();
  EXPECT_FALSE(InterruptGuard::interrupted());
  std::raise(SIGTERM);
  EXPECT_TRUE(InterruptGuard::interrupted()) << "as the first one";
}

/// While alive, standard output is a terminal.
class Terminal {
 public:
  Terminal() : terminal_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_TRUE(terminal_ >= 0 && grantpt(terminal_) == 0 && unlockpt(terminal_) == 0);
    const int end = open(ptsname(terminal_), O_RDWR | O_NOCTTY);
    standard_output_.emplace(STDOUT_FILENO, end);
    close(end);
  }
  ~Terminal() {
    standard_output_.reset();
    close(terminal_);
  }
  void set_columns(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(ioctl(terminal_, TIOCSWINSZ, &size), 0);
  }

 private:
  int terminal_;
  std::optional<testing_support::Redirection> standard_output_;
};

TEST(Progress, IsNotLiveOnADumbTerminal) {
  const auto live_on = [](const char* name) {
    const Terminal terminal;
    const testing_support::EnvironmentVariable term("TERM", name);
    return Progress::is_terminal();
  };
  EXPECT_TRUE(live_on("xterm"));
  EXPECT_FALSE(live_on("dumb"));
}

TEST(Progress, CutsTheLiveLineToTheTerminal) {
  std::ostringstream out;
  {
    const Terminal terminal;
    Progress progress(out, true);
    terminal.set_columns(8);
    progress.status("step 1/2 and more");
    terminal.set_columns(5);  // as when its window shrinks
    progress.status("\u00e4\u00f6\u00fc\u2581\u2588");
    progress.line("a whole line");
  }
  EXPECT_EQ(out.str(), "\r\x1b[Kstep 1/\r\x1b[K\u00e4\u00f6\u00fc\u2581\r\x1b[Ka whole line\n");
}

TEST(CheckWritable, ChangesNoFile) {
  const testing_support::TemporaryFolder folder;
  const std::string there = folder.file("there"), absent = folder.file("absent");
  std::ofstream(there) << "kept";
  check_writable(there, "train");
  check_writable(absent, "train");
  check_writable("", "train");
  std::string text;
  std::getline(std::ifstream(there), text);
  EXPECT_EQ(text, "kept");
  EXPECT_FALSE(std::filesystem::exists(absent));
  const std::string link = folder.file("link");
  std::filesystem::create_symlink("absent", link);
  check_writable(link, "train");
  EXPECT_TRUE(std::filesystem::is_symlink(link)) << "to a file that is still to come";
  EXPECT_FALSE(std::filesystem::exists(absent));
  write_text(link, "new", "train", std::cout);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(testing_support::read_bytes(absent), "new");
}

TEST(NoRoomFor, ReportsAFileLargerThanTheFreeSpace) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.file("a");
  EXPECT_EQ(no_room_for(path, 1), "");
  EXPECT_THAT(no_room_for(path, std::uint64_t{1} << 62), testing::StartsWith(path + " takes 4.00 EiB, and "));
  std::error_code error;
  const std::uintmax_t free = std::filesystem::space(folder.file(""), error).available;
  EXPECT_EQ(no_room_for(path, free / 4 * 3), "");
  EXPECT_THAT(no_room_for(path, free / 4 * 3, true),
              testing::HasSubstr(" (twice that while the next one replaces it), and its disk"));
  std::ofstream(path) << "the first is there";
  EXPECT_EQ(no_room_for(path, free / 4 * 3, true), "");
  EXPECT_EQ(no_room_for("/nowhere/a", std::uint64_t{1} << 62), "") << "others say what is wrong with that";
}

TEST(WriteText, ReplacesFilesAtomicallyAndWritesToDevices) {
  const testing_support::TemporaryFolder folder;
  const std::string path = folder.file("report"), older = folder.file("older");
  std::ostringstream out;
  std::ofstream(path) << "old";
  std::filesystem::create_hard_link(path, older);
  write_text(path, "new", "train", out);
  EXPECT_EQ(testing_support::read_bytes(path), "new");
  EXPECT_EQ(testing_support::read_bytes(older), "old") << "the older file itself is never cut short";
  write_text("/dev/null", "new", "train", out);
  EXPECT_THROW(write_text("/dev/full", "new", "train", out), FileError);
}

TEST(CheckWritable, GivesTheReasonAFileIsUnwritable) {
  const testing_support::TemporaryFolder folder;
  const auto why = [](const std::string& path) {
    return testing_support::error_of<FileError>([&] { check_writable(path, "train"); });
  };
  const std::string nowhere = folder.file("nowhere/model"), itself = folder.file("");
  EXPECT_EQ(why(nowhere), "[train] cannot write " + nowhere + ": its folder does not exist");
  EXPECT_EQ(why(itself), "[train] cannot write " + itself + ": Is a directory");
  check_writable("/dev/null", "train");
  EXPECT_EQ(testing_support::error_of<FileError>([] { check_replaceable("/dev/null", "train"); }),
            "[write] /dev/null: not a regular file");
}

}  // namespace
}  // namespace poolgrad::nn
