// The losses of baselines that count n-grams.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/text/ngram.h"

namespace poolgrad::nn {
namespace {

std::vector<std::uint8_t> ngram_text(const std::string& text) { return {text.begin(), text.end()}; }

TEST(Ngram, FollowsWittenAndBell) {
  // "aab": n(a) = 2, n(b) = 1, 2 types of 3; after a: a once, b once.
  const Baselines found = ngram_baselines(ngram_text("aab"), ngram_text("ab"));
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
  const std::vector<std::uint8_t> train = ngram_text("the cat sat on the mat");
  double sums[3] = {0, 0, 0};
  for (int byte = 0; byte < 256; ++byte) {
    const auto nats = ngram_baselines(train, ngram_text(std::string(1, static_cast<char>(byte))));
    sums[0] += std::exp(-nats.unigram);
    sums[1] += std::exp(-nats.bigram);
    sums[2] += std::exp(-nats.trigram);
  }
  for (const double sum : sums) EXPECT_NEAR(sum, 1.0, 1e-9);
}

TEST(Ngram, LongerHistoriesLowerTheLossOfOrderedText) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "abcbabcd"[i % 8];
  const Baselines found = ngram_baselines(ngram_text(text), ngram_text(text.substr(0, 100)));
  EXPECT_LT(found.bigram, found.unigram);
  EXPECT_LT(found.trigram, found.bigram);
  EXPECT_EQ(ngram_baselines({}, ngram_text("x")).trigram, 0.0);
}

}  // namespace
}  // namespace poolgrad::nn
