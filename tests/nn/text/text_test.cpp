// Text in pieces: reading returns the assembled bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "nn/text/byte_source.h"
#include "nn/text/text.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::error_of;

TEST(Text, PartsAndPiecesEqualTheWholeText) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE("seed 3, round " + std::to_string(round));
    std::vector<std::int32_t> all;
    Text text;
    for (int piece = 0; piece < 6; ++piece) {
      std::vector<std::uint16_t> tokens(random() % 5);
      for (std::uint16_t& token : tokens) token = static_cast<std::uint16_t>(random());
      text.append(tokens);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    const auto size = static_cast<std::int64_t>(all.size());
    ASSERT_EQ(text.size(), size);
    for (std::int64_t begin = 0; begin <= size; ++begin)
      for (std::int64_t end = begin; end <= size; ++end) {
        const std::vector<std::int32_t> expected(all.begin() + begin, all.begin() + end);
        ASSERT_EQ(text.read(begin, end - begin), expected);
        ASSERT_EQ(text.part(begin, end).read(0, end - begin), expected);
      }
    if (size > 0) {
      EXPECT_EQ(text[size - 1], all.back());
    }
  }
}

TEST(Text, RefusesRangesOutsideAndOtherTokenWidths) {
  Text text(std::vector<std::uint8_t>{1, 2, 3});
  EXPECT_EQ(error_of<IndexError>([&] { text.read(2, 2); }), "[text] from 2 to 4 leaves the text of 3");
  EXPECT_THAT(error_of<IndexError>([&] { text.part(-1, 2); }), HasSubstr("leaves the text of 3"));
  EXPECT_THAT(error_of<IndexError>([&] { Text().read(0, 1); }), HasSubstr("leaves the text of 0"));
  EXPECT_EQ(error_of<ValueError>([&] { text.append(Text(std::vector<std::uint16_t>{1})); }),
            "[text] cannot append tokens of another width");
  EXPECT_EQ(error_of<ValueError>([&] {
              Text(bytes_in_memory({1, 2, 3}), 2);
            }),
            "[text] 3 bytes are no multiple of the token width 2");
}

TEST(Text, IsReadInBlocksInFullOrSampledEvenly) {
  constexpr std::int64_t block = 1 << 20;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(10 * block + 17));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i >> 20);
  Text text(std::vector<std::uint8_t>(bytes.begin(), bytes.begin() + 12345));
  text.append(std::vector<std::uint8_t>(bytes.begin() + 12345, bytes.end()));
  std::vector<std::uint8_t> whole, part;
  std::vector<int> first;
  text.for_each_block([&](std::span<const std::uint8_t> b) {
    EXPECT_LE(b.size(), static_cast<std::size_t>(block));
    whole.insert(whole.end(), b.begin(), b.end());
  });
  EXPECT_EQ(whole, bytes);
  text.for_each_block(
      [&](std::span<const std::uint8_t> b) {
        first.push_back(b.front());
        part.insert(part.end(), b.begin(), b.end());
      },
      4 * block);
  EXPECT_EQ(part.size(), static_cast<std::size_t>(4 * block));
  EXPECT_THAT(first, ElementsAre(0, 3, 6, 9));
  int seen = 0;
  EXPECT_TRUE(text.any_block([&](std::span<const std::uint8_t>) { return ++seen == 2; }));
  EXPECT_EQ(seen, 2) << "the others are not read";
  EXPECT_FALSE(text.any_block([&](std::span<const std::uint8_t>) { return false; }));
}

}  // namespace
}  // namespace poolgrad::nn
