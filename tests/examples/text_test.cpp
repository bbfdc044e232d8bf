// The text that examples read, the n-gram baselines, and how numbers are shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "examples/support/corpus.h"
#include "examples/support/ngram.h"
#include "examples/support/progress.h"
#include "examples/support/random.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(Corpus, HoldsOutATenthOfTheFilesChosenBySeed) {
  const TemporaryFolder folder;
  for (int i = 0; i < 20; ++i)
    write_bytes(folder.file("f" + std::to_string(i)), std::string(3, static_cast<char>('a' + i)));
  std::filesystem::create_directory(folder.file("sub"));
  write_bytes(folder.file("sub/g"), "zzz");
  write_bytes(folder.file("binary"), std::string("a\0b", 3));
  write_bytes(folder.file(".hidden"), "hidden");
  const std::string path = std::filesystem::path(folder.file("x")).parent_path();
  const Corpus corpus = read_corpus({path}, 1), again = read_corpus({path}, 1), other = read_corpus({path}, 2);
  EXPECT_EQ(corpus.files, 21);
  EXPECT_EQ(corpus.train.size(), 19 * 3u);
  EXPECT_EQ(corpus.validation.size(), 2 * 3u);
  EXPECT_EQ(corpus.train, again.train);
  EXPECT_NE(corpus.train, other.train);
  for (const std::uint8_t byte : corpus.validation)
    EXPECT_EQ(std::count(corpus.train.begin(), corpus.train.end(), byte), 0) << "a file is on one side only";
}

TEST(Corpus, HoldsOutTheLastTenthOfASingleFile) {
  const TemporaryFolder folder;
  write_bytes(folder.file("text"), "0123456789abcdefghij");
  const Corpus corpus = read_corpus({folder.file("text")}, 5);
  EXPECT_EQ(corpus.train, bytes_of("0123456789abcdefgh"));
  EXPECT_EQ(corpus.validation, bytes_of("ij"));
}

TEST(Corpus, RefusesPathsWithoutText) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing"), empty = folder.file("empty");
  std::filesystem::create_directory(empty);
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({missing}, 1); }), "[train] no text at " + missing);
  EXPECT_EQ(error_of<FileError>([&] { read_corpus({empty}, 1); }), "[train] no text in " + empty);
}

TEST(Corpus, TheDefaultTextIsTheSourcesOfEigen) {
  const Corpus corpus = read_corpus({default_text()}, 1);
  EXPECT_GT(corpus.files, 100);
  const std::string text(corpus.train.begin(), corpus.train.end());
  EXPECT_NE(text.find("namespace Eigen"), std::string::npos);
}

TEST(Ngram, CountsAsWittenAndBellDo) {
  // "aab": n(a) = 2, n(b) = 1, 2 types of 3; after a: a once, b once.
  const Baselines found = ngram_baselines(bytes_of("aab"), bytes_of("ab"));
  const double uniform = 1.0 / 256, a1 = (2 + 2 * uniform) / 5, b1 = (1 + 2 * uniform) / 5;
  const double a2 = (1 + 1 * a1) / 2;  // after the beginning: a once
  const double b2 = (1 + 2 * b1) / 4;
  EXPECT_NEAR(found.unigram, -(std::log(a1) + std::log(b1)) / 2, 1e-12);
  EXPECT_NEAR(found.bigram, -(std::log(a2) + std::log(b2)) / 2, 1e-12);
  const double a3 = (1 + 1 * a2) / 2;  // after (beginning, beginning): a once
  const double b3 = (0 + 1 * b2) / 2;  // after (beginning, a): a once
  EXPECT_NEAR(found.trigram, -(std::log(a3) + std::log(b3)) / 2, 1e-12);
}

TEST(Ngram, ProbabilitiesSumToOne) {
  const std::vector<std::uint8_t> train = bytes_of("the cat sat on the mat");
  double sums[3] = {0, 0, 0};
  for (int byte = 0; byte < 256; ++byte) {
    const auto nats = ngram_baselines(train, {static_cast<std::uint8_t>(byte)});
    sums[0] += std::exp(-nats.unigram);
    sums[1] += std::exp(-nats.bigram);
    sums[2] += std::exp(-nats.trigram);
  }
  for (const double sum : sums) EXPECT_NEAR(sum, 1.0, 1e-9);
}

TEST(Ngram, LongerHistoriesHelpWhereTheTextHasOrder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcbabcd"[i % 8];
  const Baselines found = ngram_baselines(bytes_of(text), bytes_of(text.substr(0, 100)));
  EXPECT_LT(found.bigram, found.unigram);
  EXPECT_LT(found.trigram, found.bigram);
  EXPECT_EQ(ngram_baselines({}, bytes_of("x")).trigram, 0.0);
}

TEST(Random, IsAFunctionOfSeedAndIndexSpreadOverItsRange) {
  EXPECT_EQ(random_bits(1, 2), random_bits(1, 2));
  EXPECT_NE(random_bits(1, 2), random_bits(2, 2));
  double sum = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    EXPECT_LT(random_below(3, i, 7), 7u);
    sum += random_unit(3, i);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(Progress, ShowsDurationsCountsAndCurves) {
  EXPECT_EQ(format_duration(7.2), "0:07");
  EXPECT_EQ(format_duration(151), "2:31");
  EXPECT_EQ(format_duration(3723), "1:02:03");
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

TEST(Progress, DrawsALiveLineOnlyWhereAsked) {
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

}  // namespace
}  // namespace poolgrad::examples
