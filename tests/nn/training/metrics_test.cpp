// The file of metrics that grows during a run.
#include "nn/training/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "allocator/error.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

/// Adds lines of these steps to the file of a run that goes on after step `done`.
void write(const std::string& path, std::int64_t done, const std::vector<std::int64_t>& steps) {
  MetricsFile file(path, done);
  for (const std::int64_t step : steps) file.add({.step = step, .loss = 0.5 * static_cast<double>(step)}, 2.25, 4096);
  file.check();
}

/// Returns the steps in a file, and -1 for a line that is none.
std::vector<std::int64_t> steps_in(const std::string& path) {
  std::istringstream lines(read_bytes(path));
  std::vector<std::int64_t> steps;
  for (std::string line; std::getline(lines, line);)
    if (path.ends_with(".jsonl"))
      steps.push_back(nlohmann::json::parse(line)["step"]);
    else if (!line.starts_with("step,"))
      steps.push_back(std::stoll(line));
  return steps;
}

using Steps = std::vector<std::int64_t>;

TEST(MetricsFile, HasALineAtOnceForEachReport) {
  const TemporaryFolder folder;
  const std::string json = folder.file("run.jsonl"), csv = folder.file("run.csv");
  MetricsFile lines(json, 0), table(csv, 0);
  for (MetricsFile* const file : {&lines, &table}) file->add({.step = 7, .loss = 1.5}, std::nan(""), 4096);
  const auto line = nlohmann::json::parse(read_bytes(json));
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["loss"], 1.5);
  EXPECT_TRUE(line["validation_loss"].is_null());
  EXPECT_EQ(line["peak_live_bytes"], 4096);
  for (const char* key : {"learning_rate", "gradient_norm", "tokens_per_second", "live_bytes"})
    EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_THAT(read_bytes(csv), StartsWith("step,context,loss,gradient_norm,learning_rate,"));
  EXPECT_THAT(read_bytes(csv), HasSubstr(",validation_loss,peak_live_bytes\n7,0,1.5,"));
}

TEST(MetricsFile, GoesOnAfterTheStepsOfTheCheckpointWithoutDoubleLines) {
  const TemporaryFolder folder;
  for (const char* name : {"run.jsonl", "run.csv"}) {
    const std::string path = folder.file(name);
    write(path, 0, {1, 10, 20, 30});
    write_bytes(path, read_bytes(path) + "40,");  // cut off by the end of the program
    write(path, 20, {25, 30});
    EXPECT_EQ(steps_in(path), (Steps{1, 10, 20, 25, 30})) << name;
    write(path, 40, {50});
    EXPECT_EQ(steps_in(path), (Steps{1, 10, 20, 25, 30, 50})) << name;
    write(path, 0, {1});
    EXPECT_EQ(steps_in(path), Steps{1}) << "a new run, " << name;
    std::filesystem::remove(path);
    write(path, 20, {30});
    EXPECT_EQ(steps_in(path), Steps{30}) << "no file yet, " << name;
  }
}

TEST(MetricsFile, LeavesAFileOfOtherLinesAsItIs) {
  const TemporaryFolder folder;
  const std::string path = folder.file("run.jsonl"), table = folder.file("run.csv");
  const std::string good = "{\"step\":3}\n";
  for (const std::string& other :
       {std::string("a letter\n"), good + "{\"step\":3}\n", good + "{\"step\":2}\n", good + "[3]\n",
        good + "{\"step\":4.5}\n", good + std::string(5000, ' ') + "\n", std::string("{\"step\":0}\n")}) {
    write_bytes(path, other);
    EXPECT_THAT(error_of<FileError>([&] { MetricsFile(path, 9); }), HasSubstr("is not a line of metrics")) << other;
    EXPECT_EQ(read_bytes(path), other);
  }
  write_bytes(table, "step,loss\n1,2\n");
  EXPECT_EQ(error_of<FileError>([&] { MetricsFile(table, 9); }),
            "[train] cannot continue " + table + ": line 1 is not a line of metrics");
}

TEST(MetricsFile, RefusesOtherNamesAndPathsThatItCannotWrite) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of<ValueError>([] { MetricsFile("run.txt", 0); }),
            "[train] the metrics file must end in .jsonl or .csv: run.txt");
  EXPECT_THAT(error_of<FileError>([&] { MetricsFile(folder.file("none/run.csv"), 0); }), HasSubstr("cannot write"));
  EXPECT_NO_THROW(MetricsFile("", 0).add({}, 0, 0));
}

TEST(MetricsFile, TellsAtTheEndThatTheDiskWasFull) {
  const TemporaryFolder folder;
  const std::string path = folder.file("full.csv");
  MetricsFile file(path, 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{300, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (std::int64_t step = 1; step < 9; ++step) file.add({.step = step}, 0, 0);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error_of<FileError>([&] { file.check(); }), "[train] cannot write " + path + ": File too large");
}

}  // namespace
}  // namespace poolgrad::nn
