#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"

namespace poolgrad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ParseBytes, UnderstandsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("8GiB"), std::size_t{8} << 30);
  EXPECT_EQ(parse_bytes("512MiB"), std::size_t{512} << 20);
  EXPECT_EQ(parse_bytes("1.5GB"), 1500000000u);
  EXPECT_EQ(parse_bytes("1.5 KiB"), 1536u);
  EXPECT_EQ(parse_bytes("  2kb "), 2000u);
  EXPECT_EQ(parse_bytes("3 b"), 3u);
  EXPECT_EQ(parse_bytes("1tib"), std::size_t{1} << 40);
}

TEST(ParseBytes, IsExactUpToTheLargestInteger) {
  EXPECT_EQ(parse_bytes("18446744073709551615"), SIZE_MAX);
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993u);
}

TEST(ParseBytes, RefusesGarbageAndShowsIt) {
  for (const char* text :
       {"", " ", "GiB", "-1", "+1", "1 2", "8GiBs", "8 G i B", "1e3", "0x10", "nan", "inf", ".5GB"}) {
    EXPECT_THAT([&] { parse_bytes(text); }, ThrowsMessage<ValueError>(AllOf(HasSubstr("not a number of bytes"),
                                                                            HasSubstr("'" + std::string(text) + "'"))));
  }
}

TEST(ParseBytes, RefusesMoreThanSixtyFourBits) {
  for (const char* text : {"18446744073709551616", "16777216TiB", "99999999999999999999GiB"}) {
    EXPECT_THAT([&] { parse_bytes(text); }, ThrowsMessage<ValueError>(HasSubstr("more bytes than 64 bits can count")));
  }
}

TEST(FormatBytes, UsesTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::size_t{1} << 20), "1.00 MiB");
  EXPECT_EQ(format_bytes((std::size_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(std::size_t{5} << 39), "2.50 TiB");
  EXPECT_EQ(format_bytes(SIZE_MAX), "16.00 EiB");
}

TEST(AllocatorConfig, ParsesKeysInAnyOrder) {
  const AllocatorConfig config = AllocatorConfig::parse("poison:on, budget:8GiB,alignment:512");
  EXPECT_EQ(config.budget, std::size_t{8} << 30);
  EXPECT_EQ(config.alignment, 512u);
  EXPECT_TRUE(config.poison);
}

TEST(AllocatorConfig, IsTheDefaultForEmptyText) {
  const AllocatorConfig config = AllocatorConfig::parse("");
  EXPECT_EQ(config.budget, 0u);
  EXPECT_EQ(config.alignment, 64u);
  EXPECT_FALSE(config.poison);
}

TEST(AllocatorConfig, NamesTheUnknownKeyAndTheKnownOnes) {
  for (const std::string key : {"stich", "packing"}) {
    EXPECT_THAT(
        [&] { AllocatorConfig::parse("budget:1GiB," + key + ":on"); },
        ThrowsMessage<ValueError>(AllOf(
            HasSubstr("unknown option '" + key + "'"),
            HasSubstr("known options: alignment, budget, decay, decay_ms, deterministic, magazines, mode, poison, "
                      "races, stitch, stitch_idle, trace"))));
  }
}

TEST(AllocatorConfig, RefusesBadValues) {
  EXPECT_THROW(AllocatorConfig::parse("budget"), ValueError);
  EXPECT_THROW(AllocatorConfig::parse("budget:much"), ValueError);
  EXPECT_THAT([] { AllocatorConfig::parse("poison:maybe"); },
              ThrowsMessage<ValueError>(HasSubstr("poison must be on or off, got 'maybe'")));
}

TEST(AllocatorConfig, RoundTripsThroughText) {
  EXPECT_EQ(AllocatorConfig{}.text(), "");
  const std::string all =
      "alignment:512,budget:8589934592,decay:1000,decay_ms:250,deterministic:on,magazines:off,mode:planned,"
      "poison:on,races:on,"
      "stitch:off,stitch_idle:on,"
      "trace:100000";
  EXPECT_EQ(AllocatorConfig::parse(all).text(), all);
  const AllocatorConfig config = AllocatorConfig::parse("mode:none,trace:7,budget:1GiB");
  EXPECT_EQ(config.mode, AllocatorMode::none);
  EXPECT_EQ(config.trace, 7u);
  EXPECT_TRUE(config.magazines);
  EXPECT_EQ(AllocatorConfig::parse("mode:default").mode, AllocatorMode::standard);
  EXPECT_THAT([] { AllocatorConfig::parse("mode:fast"); },
              ThrowsMessage<ValueError>(HasSubstr("mode must be default, lightweight, none or planned, got 'fast'")));
  for (const char* bad : {"trace:", "trace:-1", "trace:1k", "decay:99999999999999999999"}) {
    EXPECT_THAT([&] { AllocatorConfig::parse(bad); }, ThrowsMessage<ValueError>(HasSubstr("must be a whole number")));
  }
}

TEST(AllocatorConfig, ReadsTheEnvironment) {
  ASSERT_EQ(setenv("POOLGRAD_ALLOCATOR", "budget:3MiB", 1), 0);
  EXPECT_EQ(AllocatorConfig::from_environment().budget, std::size_t{3} << 20);
  ASSERT_EQ(unsetenv("POOLGRAD_ALLOCATOR"), 0);
  EXPECT_EQ(AllocatorConfig::from_environment().budget, 0u);
}

}  // namespace
}  // namespace poolgrad
