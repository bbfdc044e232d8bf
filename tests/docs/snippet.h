// The environment in which the pages' fragments run (snippets.h).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "allocator/lab/laboratory.h"
#include "autograd/testing_gtest.h"
#include "poolgrad.h"

namespace poolgrad::docs {

/// Provides an empty working folder, random numbers from a fixed seed, and the printed text.
class SnippetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = std::filesystem::current_path();
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("poolgrad_page_" + std::to_string(getpid()) + "_" +
                                                       ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    std::filesystem::current_path(folder_);
    console_ = std::cout.rdbuf(printed_.rdbuf());
    manual_seed(1);
  }
  void TearDown() override {
    std::cout.rdbuf(console_);
    std::filesystem::current_path(home_);
    std::filesystem::remove_all(folder_);
  }

  void prints_from_here() { printed_.str(""); }
  std::string printed() const { return printed_.str(); }
  /// Ignores the number of spaces and ends of lines between words.
  void expect_printed(const std::string& text) const { EXPECT_EQ(words(printed()), words(text)); }

  template <class E = Error, class F>
  static void expect_throw(const F& f, const std::string& text) {
    try {
      f();
      ADD_FAILURE() << "nothing is thrown";
    } catch (const E& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith(text));
    }
  }

  /// Writes a text for snippets that read one.
  static void write_book(const std::string& path) {
    std::ofstream book(path);
    for (int line = 0; line < 2000; ++line) book << "the " << line << "th line of a long book\n";
  }

 private:
  static std::string words(const std::string& text) {
    std::istringstream in(text);
    std::string joined;
    for (std::string word; in >> word;) joined += (joined.empty() ? "" : " ") + word;
    return joined;
  }

  std::filesystem::path home_, folder_;
  std::ostringstream printed_;
  std::streambuf* console_ = nullptr;
};

/// Replaces a failure that the page shows: collects failures until the end of the scope, and expects at least one.
class ExpectedFailure {
 public:
  ~ExpectedFailure() {
    reporter_.reset();
    EXPECT_GT(results_.size(), 0) << "nothing fails";
  }
  /// Returns the message of the first failure.
  std::string text() const { return results_.size() > 0 ? results_.GetTestPartResult(0).message() : ""; }

 private:
  using Reporter = ::testing::ScopedFakeTestPartResultReporter;
  ::testing::TestPartResultArray results_;
  std::unique_ptr<Reporter> reporter_ = std::make_unique<Reporter>(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &results_);
};

}  // namespace poolgrad::docs

using Snippets = poolgrad::docs::SnippetTest;
