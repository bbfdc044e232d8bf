// Windows as tensors, and the choice of windows for training and validation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/base/random.h"
#include "nn/text/windows.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;

TEST(TextWindows, TargetsAreTheTextOneByteLater) {
  const std::vector<std::uint8_t> text{10, 11, 12, 13, 14};
  const TextWindows windows = windows_of(text, {0, 2}, 2);
  EXPECT_EQ(windows.tokens.to_vector<std::int64_t>(), (std::vector<std::int64_t>{10, 11, 12, 13}));
  EXPECT_EQ(windows.targets.to_vector<std::int64_t>(), (std::vector<std::int64_t>{11, 12, 13, 14}));
  for (const std::int64_t start : {-1, 3})
    EXPECT_THAT(error_of<IndexError>([&] { windows_of(text, {start}, 2); }), HasSubstr("exceed the text of 5"))
        << start;
}

/// Returns texts with these weights, each of one repeated token.
Corpus weighted(const std::vector<double>& weights, std::int64_t train = 200, std::int64_t validation = 41) {
  Corpus corpus;
  corpus.weighted = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Text text(std::vector<std::uint8_t>(static_cast<std::size_t>(train), static_cast<std::uint8_t>('a' + i)));
    const Text rest = text.part(0, validation);
    corpus.texts.push_back({text, rest, text, rest, weights[i], "text " + std::to_string(i)});
  }
  return corpus;
}

TEST(WindowPlan, DrawsFromOneTextDirectlyByTheSeed) {
  const Corpus corpus = weighted({1});
  const WindowPlan plan(corpus, 16, 2, 7);
  for (std::int64_t number = 0; number < 50; ++number) {
    EXPECT_EQ(plan.drawn(number).start,
              static_cast<std::int64_t>(random_below(7, static_cast<std::uint64_t>(number), 200 - 16)));
    EXPECT_EQ(plan.drawn(number).text, &corpus.texts[0].train_tokens);
  }
}

TEST(WindowPlan, DrawsEachTextByItsWeight) {
  const Corpus corpus = weighted({3, 1, 6});
  const WindowPlan plan(corpus, 16, 2, 7), again(corpus, 16, 1, 7), other(corpus, 16, 2, 8);
  constexpr int draws = 20000;
  std::vector<double> found(3);
  int differ = 0;
  for (std::int64_t number = 0; number < draws; ++number) {
    const WindowPlace place = plan.drawn(number);
    for (std::size_t i = 0; i < 3; ++i) found[i] += place.text == &corpus.texts[i].train_tokens ? 1.0 / draws : 0.0;
    EXPECT_EQ(again.drawn(number).text, place.text) << "whatever the batch";
    EXPECT_EQ(again.drawn(number).start, place.start);
    differ += other.drawn(number).text != place.text ? 1 : 0;
  }
  // Four deviations of a share of 20,000 draws are at most 0.0142.
  EXPECT_NEAR(found[0], 0.3, 0.0142);
  EXPECT_NEAR(found[1], 0.1, 0.0142);
  EXPECT_NEAR(found[2], 0.6, 0.0142);
  EXPECT_GT(differ, draws / 4) << "another seed draws others";
}

TEST(WindowPlan, SpreadsValidationBatchesOverAllTexts) {
  Corpus corpus = weighted({1, 1});
  corpus.texts[0].validation_tokens = corpus.texts[0].train_tokens.part(0, 161);  // 5 batches of 2 windows of 16
  corpus.texts[1].validation_tokens = corpus.texts[1].train_tokens.part(0, 12);
  const WindowPlan plan(corpus, 16, 2, 7);
  EXPECT_EQ(plan.validation_batches(), 5 + 1);
  const auto all = plan.validation(100);
  ASSERT_EQ(all.size(), 6u);
  std::vector<std::int64_t> starts;
  for (std::size_t i = 0; i < 5; ++i)
    for (const WindowPlace& place : all[i].places) starts.push_back(place.start);
  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 16, 32, 48, 64, 80, 96, 112, 128, 144}));
  EXPECT_EQ(all[5].text, 1u);
  EXPECT_EQ(all[5].length, 11) << "as long as the text allows";
  const auto few = plan.validation(1);
  ASSERT_EQ(few.size(), 2u) << "each text has one";
  EXPECT_EQ(few[0].places[1].start, 144);
}

TEST(WindowPlan, CoversAValidationTextOfItsOwn) {
  Corpus corpus = weighted({1, 1});
  corpus.own_validation = true;
  corpus.texts[1].validation_tokens = {};
  for (const std::int64_t tokens : {2, 16, 17, 18, 33, 100, 161, 170}) {
    corpus.texts[0].validation_tokens = corpus.texts[0].train_tokens.part(0, tokens);
    const WindowPlan plan(corpus, 16, 2, 7);
    const auto batches = plan.validation(plan.validation_batches());
    std::int64_t scored = 0;  // the targets [1, scored] have been
    for (const WindowPlan::Batch& batch : batches)
      for (const WindowPlace& place : batch.places) {
        EXPECT_LE(place.start, scored) << tokens;
        scored = place.start + batch.length;
      }
    EXPECT_EQ(scored, tokens - 1);
  }
  corpus.texts[0].validation_tokens = corpus.texts[0].train_tokens.part(0, 1);
  EXPECT_EQ(error_of<ValueError>([&] { WindowPlan plan(corpus, 16, 1, 1); }),
            "[train] the validation text has less than two tokens");
}

TEST(WindowPlan, CountsTheBytesOfTargets) {
  Corpus corpus(std::vector<std::uint8_t>(100, 'a'), std::vector<std::uint8_t>(20, 'a'));
  EXPECT_EQ(WindowPlan(corpus, 4, 1, 1).target_bytes({{&corpus.texts[0].train_tokens, 3}}, 3),
            (std::vector<double>{1, 1, 1}));
  corpus.tokenizer = std::make_shared<const Tokenizer>(std::vector<Tokenizer::Merge>{{97, 97}, {256, 97}});
  corpus.texts[0].train_tokens = std::vector<std::uint16_t>{97, 256, 257, 98, 256, 97};
  corpus.texts[0].validation_tokens = corpus.texts[0].train_tokens;
  const Text* const text = &corpus.texts[0].train_tokens;
  EXPECT_EQ(WindowPlan(corpus, 4, 1, 1).target_bytes({{text, 0}, {text, 2}}, 3),
            (std::vector<double>{2 + 1, 3 + 2, 1 + 1}));
}

TEST(WindowPlan, NamesTheTextThatIsTooShort) {
  const auto refusal = [](const Corpus& corpus) {
    return error_of<ValueError>([&] { WindowPlan plan(corpus, 16, 1, 1); });
  };
  Corpus corpus = weighted({1, 1});
  corpus.texts[1].validation_tokens = corpus.texts[1].validation_tokens.part(0, 1);
  EXPECT_EQ(refusal(corpus), "[train] the text text 1 is too short for a validation part");
  corpus.texts[1].train_tokens = std::vector<std::uint16_t>(16);
  EXPECT_EQ(refusal(corpus),
            "[train] the text text 1 is shorter than the context: 16 tokens to train on, a context of 16");
  EXPECT_EQ(refusal(Corpus()), "[train] there is no text");
}

TEST(TextWindows, MixTokensOfSeveralTexts) {
  const Text a(std::vector<std::uint16_t>{1000, 2, 65535, 4}), b(std::vector<std::uint16_t>{7, 300, 9});
  const TextWindows windows = windows_of({{&a, 1}, {&b, 0}}, 2);
  EXPECT_EQ(windows.tokens.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 65535, 7, 300}));
  EXPECT_EQ(windows.targets.to_vector<std::int64_t>(), (std::vector<std::int64_t>{65535, 4, 300, 9}));
  EXPECT_EQ(windows.tokens.dtype(), DType::i64);
  EXPECT_THAT(error_of<IndexError>([&] {
                windows_of({{&a, 1}, {&b, 1}}, 2);
              }),
              HasSubstr("a window of 2 and the token after it, from 1, exceed the text of 3"));
}

TEST(TextWindows, RefuseALengthOf0AndAMissingText) {
  const Text text(std::vector<std::uint8_t>(100));
  for (const std::int64_t length : {-50, -1, 0})
    EXPECT_EQ(error_of<IndexError>([&] { windows_of(text, {60}, length); }),
              "[windows_of] the length of a window must be at least 1, but is " + std::to_string(length));
  EXPECT_EQ(error_of<ValueError>([] { windows_of({WindowPlace{}}, 4); }), "[windows_of] a window has no text");
}

TEST(Random, DependsOnSeedAndIndexAndCoversItsRange) {
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
