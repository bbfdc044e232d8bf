// Text as models read it, the n-gram baselines, and text as models write it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "nn/training/random.h"
#include "nn/training/text.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
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

TEST(TextWindows, AreTheTextAndTheTextOneByteFurther) {
  const std::vector<std::uint8_t> text{10, 11, 12, 13, 14};
  const TextWindows windows = windows_of(text, {0, 2}, 2);
  EXPECT_EQ(windows.tokens.to_vector<std::int64_t>(), (std::vector<std::int64_t>{10, 11, 12, 13}));
  EXPECT_EQ(windows.targets.to_vector<std::int64_t>(), (std::vector<std::int64_t>{11, 12, 13, 14}));
  for (const std::int64_t start : {-1, 3})
    EXPECT_THAT(error_of<IndexError>([&] { windows_of(text, {start}, 2); }), HasSubstr("leave the text of 5")) << start;
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

}  // namespace
}  // namespace poolgrad::nn
