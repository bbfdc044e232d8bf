// Tokens of several bytes: learned, written and read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "nn/text/text.h"
#include "nn/text/tokenizer.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;

Text text_from(const std::string& text) { return std::vector<std::uint8_t>(text.begin(), text.end()); }

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    words.emplace_back(text.substr(0, word_length(text)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::string> result;
  for (const std::int64_t token : tokenizer.encode(text)) result.emplace_back(tokenizer.bytes_of(token));
  return result;
}

/// A text of words of a few letters, numbers, signs, white space and other bytes.
std::string noise(std::uint32_t seed, std::size_t size) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < size) {
    static const std::string some[] = {"the",  " cat", "int ", "x_1",      "42",  "  ",
                                       "\n\t", "::",   "();",  "\xc3\xa9", "aaaa"};
    if (random() % 8 == 0)
      text += static_cast<char>(random());
    else
      text += some[random() % std::size(some)];
  }
  return text;
}

/// Byte-pair encoding by definition: counts every pair of every word again for every merge.
std::vector<Tokenizer::Merge> merges_by_hand(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> words;
  for (const std::string& word : words_of(text)) {
    words.emplace_back();
    for (const char c : word) words.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<Tokenizer::Merge> merges;
  while (256 + std::ssize(merges) < vocabulary) {
    std::map<Tokenizer::Merge, std::int64_t> counts;
    for (const auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        ++counts[{word[i], word[i + 1]}];
        if (i + 2 < word.size() && word[i] == word[i + 1] && word[i] == word[i + 2]) ++i;  // the next one overlaps
      }
    std::pair<Tokenizer::Merge, std::int64_t> best{{}, 1};
    for (const auto& entry : counts)
      if (entry.second > best.second) best = entry;  // among equals the smaller pair, which comes first
    if (best.second < 2) break;
    const auto token = static_cast<std::int32_t>(256 + std::ssize(merges));
    merges.push_back(best.first);
    for (auto& word : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == best.first.first && word[i + 1] == best.first.second) {
          word[i] = token;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return merges;
}

TEST(Words, AreRunsOfOneKindAfterAnOptionalSpace) {
  EXPECT_THAT(words_of("int x_1 = 42;\n    return f(x);"),
              ElementsAre("int", " x_", "1", " =", " 42", ";", "\n   ", " return", " f", "(", "x", ");"));
  EXPECT_THAT(words_of("caf\xc3\xa9 \t 7 "), ElementsAre("caf\xc3\xa9", " \t", " 7", " "));
  EXPECT_THAT(words_of(std::string(130, 'a')),
              ElementsAre(std::string(64, 'a'), std::string(64, 'a'), std::string(2, 'a')));
  EXPECT_THAT(words_of(" " + std::string(64, 'a')), ElementsAre(" " + std::string(63, 'a'), "a"));
}

TEST(Tokenizer, LearnsTheMostFrequentThenSmallestPairFirst) {
  // "lo" and "ow" come four times, "we" and "er" twice.
  const Tokenizer tokenizer = Tokenizer::learn(text_from("low\nlower\nlow\nlower"), 261);
  std::vector<std::string> made;
  for (std::int64_t token = 256; token < tokenizer.size(); ++token) made.emplace_back(tokenizer.bytes_of(token));
  EXPECT_THAT(made, ElementsAre("lo", "low", "er", "lower"));
  EXPECT_EQ(tokenizer.size(), 260) << "no other pair comes twice";
  EXPECT_THAT(pieces(tokenizer, "slower lows"), ElementsAre("s", "lower", " ", "low", "s"));
}

TEST(Tokenizer, CountsOverlappingPairsAsMergesReplaceThem) {
  // "aa" is replaced three times in the words of a's, once in each; "xy" comes four times.
  const Tokenizer tokenizer = Tokenizer::learn(text_from("aaa aaa aaa\nxy xy xy xy"), 257);
  EXPECT_EQ(tokenizer.bytes_of(256), "xy");
  EXPECT_EQ(Tokenizer::learn(text_from("aaaa aaaa\nxy xy xy"), 257).bytes_of(256), "aa") << "twice in a word of four";
  EXPECT_EQ(Tokenizer::learn(text_from("aaa"), 257).size(), 256) << "no pair comes twice";
}

TEST(Tokenizer, LearnsTheMergesOfTheDefinition) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const std::string text = noise(seed, 4000);
    EXPECT_EQ(Tokenizer::learn(text_from(text), 330).merges(), merges_by_hand(text, 330)) << seed;
  }
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  const Tokenizer learned = Tokenizer::learn(text_from(noise(4, 20000)), 400), bytes;
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  for (const std::string& text : {std::string(), std::string(1, '\0'), all + all, noise(5, 5000),
                                  std::string(100000, 'a'), std::string("\xc3"), std::string("\xa9 \xff\xfe")}) {
    EXPECT_EQ(learned.decode(learned.encode(text)), text);
    EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
    EXPECT_EQ(bytes.encode(text).size(), text.size());
  }
  EXPECT_LT(learned.encode(noise(5, 5000)).size(), 3500u) << "tokens have more than a byte";
  EXPECT_EQ(error_of<IndexError>([&] { learned.bytes_of(400); }), "[tokenizer] there is no token 400 among 400");
}

TEST(Tokenizer, EncodesPiecesLikeTheWhole) {
  const Tokenizer tokenizer = Tokenizer::learn(text_from(noise(6, 20000)), 500);
  const std::string text = noise(7, 3000) + std::string(500, ' ') + noise(8, 3000);
  const std::vector<std::int64_t> at_once = tokenizer.encode(text);
  for (const std::size_t piece : {1u, 7u, 64u, 65u, 1000u}) {
    Encoder encoder(tokenizer);
    std::vector<std::uint16_t> tokens;
    for (std::size_t begin = 0; begin < text.size(); begin += piece)
      encoder.feed(std::string_view(text).substr(begin, piece), false, tokens);
    encoder.feed("", true, tokens);
    EXPECT_EQ(std::vector<std::int64_t>(tokens.begin(), tokens.end()), at_once) << piece;
  }
  std::int64_t done = 0;
  const Text encoded = encode(tokenizer, text_from(text), [&](std::int64_t bytes) { done = bytes; });
  EXPECT_EQ(done, std::ssize(text));
  EXPECT_EQ(encoded.width(), 2);
  const std::vector<std::int32_t> read = encoded.read(0, encoded.size());
  EXPECT_EQ(std::vector<std::int64_t>(read.begin(), read.end()), at_once);
  EXPECT_TRUE(encode(tokenizer, Text()).empty());
}

TEST(Tokenizer, LearnsNothingWithoutRepeatedPairs) {
  EXPECT_EQ(Tokenizer::learn(Text(), 300).size(), 256);
  EXPECT_EQ(Tokenizer::learn(text_from("abcdef"), 300).size(), 256);
}

TEST(Tokenizer, RefusesInvalidMerges) {
  const auto refusal = [](std::vector<Tokenizer::Merge> merges) {
    return error_of<ValueError>([&] { Tokenizer tokenizer(std::move(merges)); });
  };
  EXPECT_EQ(refusal({{97, 256}}), "[tokenizer] token 256 joins 97 and 256, which are not both earlier tokens");
  EXPECT_THAT(refusal({{97, 98}, {-1, 3}}), HasSubstr("token 257 joins -1 and 3"));
  EXPECT_EQ(refusal({{97, 98}, {97, 98}}), "[tokenizer] token 257 joins 97 and 98, like an earlier token");
  std::vector<Tokenizer::Merge> doubling{{97, 97}};
  for (std::int32_t token = 256; doubling.size() < 100; ++token) doubling.emplace_back(token, token);
  EXPECT_EQ(refusal(doubling), "[tokenizer] token 262 has more than 64 bytes");
  EXPECT_EQ(refusal(std::vector<Tokenizer::Merge>(70000)), "[tokenizer] 70000 merges are more than 65280");
}

TEST(Tokenizer, IsNamedByItsVocabulary) {
  EXPECT_EQ(parse_tokenizer("bytes"), 256);
  EXPECT_EQ(parse_tokenizer("bpe:257"), 257);
  EXPECT_EQ(parse_tokenizer("bpe:65536"), 65536);
  for (const std::string name : {"bpe:100", "bpe:256", "bpe:65537", "bpe:abc", "bpe:", "bpe:300x", "words", ""})
    EXPECT_EQ(error_of<ValueError>([&] { parse_tokenizer(name); }),
              "[train] --tokenizer must be bytes, or bpe:N with N from 257 to 65536, but is " + name);
}

}  // namespace
}  // namespace poolgrad::nn
