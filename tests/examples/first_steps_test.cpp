// The first programs to read: one for each way to start, each short and with the library as its only dependency.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

std::set<std::string> first_steps() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(POOLGRAD_FIRST_STEPS))
    names.insert(entry.path().filename());
  return names;
}

TEST(FirstStepsSources, ListTheFivePrograms) {
  EXPECT_THAT(first_steps(), testing::ElementsAre("char_rnn.cpp", "custom_gradient.cpp", "mlp.cpp", "pool_client.cpp",
                                                  "transformer.cpp"));
}

TEST(FirstStepsSources, HaveFewerThanSixtyLinesEach) {
  for (const std::string& name : first_steps()) {
    const std::string text = testing_support::read_bytes(POOLGRAD_FIRST_STEPS "/" + name);
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60) << name;
  }
}

TEST(FirstStepsSources, IncludeOnlyPoolgradAndTheStandardLibrary) {
  for (const std::string& name : first_steps()) {
    std::istringstream lines(testing_support::read_bytes(POOLGRAD_FIRST_STEPS "/" + name));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("#include")) continue;
      EXPECT_THAT(line, testing::MatchesRegex("#include <([a-z]+|poolgrad/poolgrad.h)>")) << name;
    }
  }
}

}  // namespace
}  // namespace poolgrad::examples
