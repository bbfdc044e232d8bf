// Keys chosen to collide in the standard library's tables do not collide here.
#include "allocator/base/salted_map.h"

#include <gtest/gtest.h>

#include <set>

namespace poolgrad {
namespace {

// std::hash of texts is 64-bit MurmurHash2 (Appleby 2008). For eight bytes x, scrambled(x) enters the sum by exclusive
// or and a product with an odd number. So a change of the highest bit of two neighboring words can go unseen.
constexpr std::uint64_t factor = 0xc6a4a7935bd1e995u;

std::uint64_t inverse_of_factor() {
  std::uint64_t inverse = factor;
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  return inverse;
}
std::uint64_t word_for(std::uint64_t scrambled) {
  const std::uint64_t product = scrambled * inverse_of_factor();
  return (product ^ product >> 47) * inverse_of_factor();
}
/// Returns 2^`pairs` texts of `pairs` * 16 bytes that have the same std::hash for every seed.
std::vector<std::string> alike(int pairs) {
  constexpr std::uint64_t highest = std::uint64_t{1} << 63;
  std::vector<std::string> texts{""};
  for (int n = 0; n < pairs; ++n) {
    std::vector<std::string> longer;
    for (const std::string& text : texts)
      for (const std::uint64_t change : {std::uint64_t{0}, highest}) {
        const std::uint64_t words[] = {word_for(12345 ^ change), word_for(67890 ^ change)};
        longer.push_back(text + std::string(reinterpret_cast<const char*>(words), sizeof(words)));
      }
    texts.swap(longer);
  }
  return texts;
}

TEST(SaltedMap, SeparatesTextsWithEqualStdHashes) {
  const std::vector<std::string> texts = alike(12);
  std::set<std::size_t> standard, salted;
  for (const std::string& text : texts) {
    standard.insert(std::hash<std::string>{}(text));
    salted.insert(SaltedHash{}(std::string_view(text)));
  }
  EXPECT_EQ(texts.size(), 4096u);
  EXPECT_LE(standard.size(), 1u) << "the standard library has another hash: this test needs other texts";
  EXPECT_GE(salted.size(), texts.size() - 1);  // of 8 million pairs in 2^32 places
}

TEST(SaltedMap, SeparatesTextsThatDifferOnlyInLength) {
  std::set<std::size_t> hashes;
  for (std::size_t length = 0; length < 40; ++length) hashes.insert(SaltedHash{}(std::string(length, '\0')));
  EXPECT_EQ(hashes.size(), 40u);
}

TEST(SaltedMap, SpreadsMultiplesOfANumber) {
  std::set<std::size_t> places;
  for (std::uint64_t i = 0; i < 1000; ++i) places.insert(SaltedHash{}(i * 42043 << 20) % 1024);
  EXPECT_GT(places.size(), 500u);  // 638 of 1024 at random
}

}  // namespace
}  // namespace poolgrad
