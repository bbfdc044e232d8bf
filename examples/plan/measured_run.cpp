#include "examples/plan/measured_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "allocator/error.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace poolgrad::examples {

namespace {

/// A new folder for reports, removed with its contents.
class ReportFolder {
 public:
  ReportFolder() : path_((std::filesystem::temp_directory_path() / "poolgrad-plan-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw FileError("[plan] cannot make a folder " + path_);
  }
  ~ReportFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ReportFolder(const ReportFolder&) = delete;
  ReportFolder& operator=(const ReportFolder&) = delete;

  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> command_line(const std::string& program, const TrainOptions& o, const std::string& report) {
  std::vector<std::string> words{program, "--quiet", "--json=" + report};
  for (const std::string& argument : o.arguments()) words.push_back(argument);
  for (const std::string& text : o.text) words.push_back("--text=" + text);
  words.push_back("--checkpoint=" + o.checkpoint);
  words.push_back("--device=" + o.device);
  words.push_back(fmt::format("--store-every={}", o.store_every));
  words.push_back(fmt::format("--sample={}", o.sample));
  words.push_back(fmt::format("--report={}", o.report));
  if (!o.budget.empty()) words.push_back("--budget=" + o.budget);
  if (!o.offload.empty()) words.push_back("--offload=" + o.offload);
  return words;
}

/// Returns the exit status. Standard error goes to the file `errors`; other output is discarded. The child has its own
/// process group, so Ctrl-C ends this program and thereby the child, which then writes no checkpoint.
int run_and_wait(std::vector<std::string> words, const std::string& errors) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int file = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(nothing);
  ::close(file);
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 ? status : -1;
}

}  // namespace

std::string train_program() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path program = self.parent_path() / "train";
  if (error || !std::filesystem::is_regular_file(program, error))
    throw FileError("[plan] --measure runs the program train beside this one, but there is none: " + program.string());
  return program.string();
}

MeasuredRun measure_run(const std::string& program, const TrainOptions& options) {
  const ReportFolder folder;
  const std::string report = folder.file("report.json"), errors = folder.file("errors");
  MeasuredRun run;
  if (const int status = run_and_wait(command_line(program, options, report), errors); status != 0) {
    const std::string said = text_of(errors);
    run.failure = said.empty() ? fmt::format("{} ended with status {}", program, status) : said;
    while (run.failure.ends_with('\n')) run.failure.pop_back();
    return run;
  }
  const auto answer = nlohmann::json::parse(text_of(report));
  std::vector<double> times;
  for (const auto& step : answer["steps"]) times.push_back(step["milliseconds"].get<double>());
  if (times.size() > 1) times.erase(times.begin());
  std::ranges::sort(times);
  if (!times.empty()) run.milliseconds = (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
  run.peak_live = answer["peak_live_bytes"].get<std::uint64_t>();
  run.peak_reserved = answer["peak_reserved_bytes"].get<std::uint64_t>();
  return run;
}

}  // namespace poolgrad::examples
