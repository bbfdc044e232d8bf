#include "examples/support/attention_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using attention::Pattern;
using ::testing::HasSubstr;
using testing_support::error_of;

AttentionOptions named(const std::string& name) {
  AttentionOptions options;
  options.attention = name;
  return options;
}

template <class Change>
std::string refusal(const std::string& name, const Change& change) {
  AttentionOptions options = named(name);
  change(options);
  return error_of<ValueError>([&] { options.pattern(1024, "train"); });
}

TEST(AttentionOptions, EveryNameIsAPatternThatOnlyLooksBackAndSeesItself) {
  for (const std::string& name : attention_names()) {
    const Pattern pattern = named(name).pattern(256, "train");
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 256; i += 7) {
        EXPECT_GE(pattern.multiplicity(h, 4, i, i), 1) << name << " head " << h << " at " << i;
        for (std::int64_t j = i + 1; j < 256; ++j) ASSERT_EQ(pattern.multiplicity(h, 4, i, j), 0) << name;
      }
  }
}

TEST(AttentionOptions, MakeTheirPatterns) {
  const Pattern causal = Pattern::causal();
  EXPECT_EQ(named("causal").pattern(64, "train"), causal);
  EXPECT_EQ(named("dense").pattern(64, "train"), causal);
  EXPECT_EQ(named("ring").pattern(64, "train"), causal);
  EXPECT_EQ(named("window").pattern(64, "train"), Pattern::window(255, 0));
  EXPECT_EQ(named("block_sparse").pattern(64, "train"), Pattern::block_offsets(64, {0, -1, -2, -4}) & causal);
  EXPECT_EQ(named("global_local").pattern(64, "train"), Pattern::global_local(64, 256, 64) & causal);
  EXPECT_EQ(named("strided").pattern(64, "train"), Pattern::strided(64) & causal);
  EXPECT_EQ(named("random").pattern(64, "train"), Pattern::random_blocks(64, 0.25) & causal);
  AttentionOptions dilated = named("dilated");
  dilated.segments = {64, 256};
  dilated.rates = {1, 4};
  EXPECT_EQ(dilated.pattern(64, "train"), Pattern::dilated({64, 256}, {1, 4}) & causal);
}

TEST(AttentionOptions, DilatedSegmentsReachOverTheContextUnlessGiven) {
  AttentionOptions options = named("dilated");
  for (const std::int64_t context : {1, 255, 256, 257, 4256, 8192, 100000}) {
    const auto segments = options.segments_for(context);
    EXPECT_GE(segments.back(), context);
    EXPECT_EQ(segments.size(), options.rates_or_default().size());
    EXPECT_NO_THROW(options.pattern(context, "train"));
  }
  EXPECT_EQ(options.segments_for(4256), (std::vector<std::int64_t>{256, 2048, 8192}));
  options.segments = {100};
  EXPECT_EQ(options.segments_for(4096), options.segments);
}

TEST(AttentionOptions, RefuseInOneSentence) {
  EXPECT_EQ(refusal("sliding", [](auto&) {}),
            "[train] --attention must be one of causal, dense, window, dilated, block_sparse, global_local, strided, "
            "random, ring, but is sliding");
  EXPECT_EQ(refusal("window", [](auto& o) { o.window = 0; }), "[train] --window must be at least 1, but is 0");
  EXPECT_THAT(refusal("dilated", [](auto& o) { o.segments = {64}; }), HasSubstr("[dilated]"));
  EXPECT_THAT(refusal("dilated", [](auto& o) { o.rates = {1, 2, 0}; }), HasSubstr("[dilated]"));
  EXPECT_EQ(refusal("block_sparse",
                    [](auto& o) {
                      o.offsets = {0, -1};
                    }),
            "[train] --offsets count blocks back and must not be negative, but one is -1");
  EXPECT_THAT(refusal("block_sparse", [](auto& o) { o.block = 17; }), HasSubstr("17"));
  EXPECT_THAT(refusal("random", [](auto& o) { o.density = 1.5; }), HasSubstr("1.5"));
  EXPECT_EQ(refusal("ring", [](auto& o) { o.ring_size = 0; }), "[train] --ring-size must be at least 1, but is 0");
  EXPECT_THAT(refusal("ring", [](auto& o) { o.layout = "spiral"; }), HasSubstr("spiral"));
}

TEST(AttentionOptions, DescribeThemselves) {
  EXPECT_EQ(named("window").describe(4096), "window of 256");
  EXPECT_EQ(named("ring").describe(4096), "causal over a zigzag ring of 4");
  EXPECT_THAT(named("dilated").describe(4096), HasSubstr("256 1024 4096"));
}

TEST(AttentionOptions, AreReadFromTheCommandLineWithCommas) {
  AttentionOptions options;
  CLI::App app;
  add_attention_options(app, options);
  app.parse("--segments 16,64 --rates 1,4 --offsets 0,3 --block 32 --layout striped --density 0.5");
  EXPECT_EQ(options.segments, (std::vector<std::int64_t>{16, 64}));
  EXPECT_EQ(options.rates, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(options.offsets, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(options.block, 32);
  EXPECT_EQ(options.layout, "striped");
}

}  // namespace
}  // namespace poolgrad::examples
