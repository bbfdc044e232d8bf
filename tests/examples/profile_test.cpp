// The output of train --profile for a few steps.
#include "examples/train/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "examples/support/console.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

TrainOptions profiled_run(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  write_bytes(folder.file("text"), text);
  TrainOptions options;
  options.text = {folder.file("text")};
  options.context = 128;
  options.layers = 2;
  options.width = 32;
  options.attention.window = 32;
  return options;
}

const ProfileRow& row_of(const std::vector<ProfileRow>& rows, const std::string& name) {
  static const ProfileRow none;
  for (const ProfileRow& row : rows)
    if (row.name == name) return row;
  ADD_FAILURE() << "no row " << name;
  return none;
}

TEST(Profile, CountsTheKernelsOfTheSteps) {
  const TemporaryFolder folder;
  const StepProfile profile = profile_steps(profiled_run(folder), 2);
  double sum = 0, of_parts = 0;
  for (const ProfileRow& row : profile.kernels) sum += row.nanoseconds;
  for (const ProfileRow& row : profile.scopes) of_parts += row.nanoseconds;
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, profile.nanoseconds);
  EXPECT_DOUBLE_EQ(sum, of_parts) << "the same time, divided in another way";
  EXPECT_EQ(row_of(profile.kernels, "adamw").calls, 2 * 2) << "matrices decay, vectors do not";
  const ProfileRow &forward = row_of(profile.kernels, "attention_forward"),
                   &backward = row_of(profile.kernels, "attention_backward");
  EXPECT_EQ(forward.calls, 2 * 2) << "a layer, a step";
  // Window of 32 in a context of 128: 32 keys but for the first 31 queries. Two products of 8 in each of 4 heads.
  const double pairs = 128 * 32 - 32 * 31 / 2.0;
  EXPECT_EQ(forward.operations, 2 * 2 * 2.0 * 2 * 8 * 4 * pairs);
  EXPECT_EQ(backward.operations, 2.5 * forward.operations);
  EXPECT_GT(row_of(profile.scopes, "model.block*.mixer.projection").calls, 0);
  EXPECT_GT(profile.most_operations, 1e8);
  EXPECT_GT(profile.most_bytes, 1e8);
}

TEST(Profile, ComparesEachCallWithItsBindingCeiling) {
  const TemporaryFolder folder;
  const StepProfile profile = profile_steps(profiled_run(folder), 2);
  double least = 0, of_parts = 0;
  for (const ProfileRow& row : profile.kernels) {
    least += row.least_nanoseconds;
    // A sum over calls of the larger of two times is at least the larger sum of one, and at most the sum of both.
    const double computing = 1e9 * row.operations / profile.most_operations,
                 moving = 1e9 * row.bytes / profile.most_bytes;
    EXPECT_GE(row.least_nanoseconds, 0.999 * std::max(computing, moving)) << row.name;
    EXPECT_LE(row.least_nanoseconds, 1.001 * (computing + moving)) << row.name;
  }
  for (const ProfileRow& row : profile.scopes) of_parts += row.least_nanoseconds;
  EXPECT_GT(least, 0);
  EXPECT_NEAR(least, of_parts, 1e-6 * least);
}

TEST(Profile, PrintsBytesPerStepAndShareOfTheCeiling) {
  StepProfile profile;
  profile.steps = 2;
  profile.nanoseconds = 1e6;
  profile.most_operations = 4e9;
  profile.most_bytes = 1e11;
  profile.kernels = {
      {"gemm", 4, 500e3, 2048.0, 1e6, 250e3}, {"copy", 2, 100e3, 6 << 20, 0, 75e3}, {"fill", 2, 1e3, 0, 0, 0}};
  std::istringstream lines(profile_text(profile));
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(std::regex_replace(line, std::regex(" {2,}"), "|"));
  EXPECT_EQ(rows.at(0), "|kernel, of a step|calls|ms|share|bytes|GFLOP/s|GB/s|of the ceiling");
  EXPECT_EQ(rows.at(1), "|gemm|2|0.250|50.0 %|1.00 KiB|2.0|0.0|50.0 % of GFLOP/s");
  EXPECT_EQ(rows.at(2), "|copy|1|0.050|10.0 %|3.00 MiB|62.9|75.0 % of GB/s");
  EXPECT_EQ(rows.at(3), "|fill|1|0.001|0.1 %") << "moves nothing that is counted";
  EXPECT_EQ(rows.at(6), "|a step|0.500|100.0 %|3.00 MiB");
  EXPECT_EQ(rows.at(7), "|this machine: a large product, a copy|4.0|100.0");
}

TEST(Profile, PrintsItsTablesAndWritesKernelsAboveMemory) {
  const TemporaryFolder folder;
  TrainOptions options = profiled_run(folder);
  options.profile_trace = folder.file("trace.json");
  std::ostringstream out;
  profile(options, out);
  for (const char* part :
       {"kernel, of a step", "GFLOP/s", "GB/s", "of the ceiling", "% of GB/s", "gemm", "between kernels", "a step",
        "100.0 %", "this machine", "part of the program", "wrote    trace "})
    EXPECT_THAT(out.str(), HasSubstr(part));
  const Json trace = Json::parse(read_bytes(options.profile_trace));
  double first = 1e300, last = 0;
  std::size_t kernels = 0, counters = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "C") {
      ++counters;
      first = std::min(first, event["ts"].get<double>());
      last = std::max(last, event["ts"].get<double>());
    }
    kernels += event.value("cat", "") == "kernel";
  }
  EXPECT_GT(kernels, 100u);
  EXPECT_GT(counters, 100u);
  std::size_t within = 0;  // the same clock
  for (const Json& event : trace["traceEvents"])
    within += event.value("cat", "") == "kernel" && event["ts"] > first - 1e5 && event["ts"] < last + 1e5;
  EXPECT_EQ(within, kernels);
}

TEST(Profile, RefusesASimulatedDevice) {
  const TemporaryFolder folder;
  TrainOptions options = profiled_run(folder);
  options.device = "sim:1GiB";
  EXPECT_THAT(error_of<ValueError>([&] { profile_steps(options); }), HasSubstr("--profile measures times"));
}

}  // namespace
}  // namespace poolgrad::examples
