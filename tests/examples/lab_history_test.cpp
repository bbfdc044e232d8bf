// A trace as lifetimes of blocks, pages, and totals over time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "examples/lab/history.h"
#include "tests/examples/lab_support.h"

namespace poolgrad::examples {
namespace {

using ::testing::ElementsAre;

std::uint64_t offset(const BlockLife& block) { return block.address - lab_base; }

/// Returns the moments of the trace's only block.
std::vector<Moment> life_of(Trace& trace) {
  const History history = history_of(trace);
  EXPECT_EQ(history.blocks.size(), 1u);
  if (history.blocks.size() != 1) return {};
  return {history.blocks[0].begin, history.blocks[0].given_back, history.blocks[0].end};
}

TEST(History, FollowsABlockFromItsAllocationToItsFree) {
  TraceBuilder trace;
  trace.map(0, lab_page).allocate(64, 100).step().free(64, 100).step();
  const BlockLife block = history_of(*trace).blocks.at(0);
  EXPECT_EQ(life_of(*trace), (std::vector<Moment>{2, 4, 5}));
  EXPECT_EQ(offset(block), 64u);
  EXPECT_EQ(block.requested, 100u);
}

TEST(History, KeepsPendingFreesSeparate) {
  TraceBuilder trace;
  trace.allocate(0, 64).request_free(0, 64).step().step().complete_free(0, 64);
  EXPECT_EQ(life_of(*trace), (std::vector<Moment>{1, 2, 5}));
}

TEST(History, BlocksFreedWithoutAnAllocationExistFromTheStart) {
  TraceBuilder trace;
  trace.step().free(128, 64);
  EXPECT_EQ(life_of(*trace), (std::vector<Moment>{0, 2, 3}));
}

TEST(History, BlocksWithoutEventsExistThroughout) {
  TraceBuilder trace;
  trace.step().remains(0, 4096, BlockState::live, 7);
  EXPECT_EQ(life_of(*trace), (std::vector<Moment>{0, 2, 2}));
  const BlockLife block = history_of(*trace).blocks[0];
  EXPECT_EQ(block.number, 7u);
}

TEST(History, BlocksPendingAtTheEndCountAsFreed) {
  TraceBuilder trace;
  trace.allocate(0, 64).request_free(0, 64).remains(0, 64, BlockState::pending);
  EXPECT_EQ(life_of(*trace), (std::vector<Moment>{1, 2, 3}));
}

TEST(History, FindsTheInitialPagesByReversingEvents) {
  TraceBuilder trace;  // one page stays, one is released, one is committed
  trace.unmap(lab_page, lab_page).map(4 * lab_page, lab_page);
  trace.remains(0, lab_page, BlockState::free).remains(4 * lab_page, lab_page, BlockState::live);
  const History history = history_of(*trace);
  ASSERT_EQ(history.pages.size(), 3u);
  const auto moments = [&](std::size_t i) { return std::pair(history.pages[i].begin, history.pages[i].end); };
  EXPECT_EQ(moments(0), std::pair(Moment{0}, Moment{1})) << "the page that goes";
  EXPECT_EQ(moments(1), std::pair(Moment{0}, Moment{3}));
  EXPECT_EQ(moments(2), std::pair(Moment{2}, Moment{3})) << "the page that comes";
}

TEST(History, UnmapsPartsOfARange) {
  TraceBuilder trace;
  trace.map(0, 4 * lab_page).unmap(lab_page, lab_page);
  trace.remains(0, lab_page, BlockState::free).remains(2 * lab_page, 2 * lab_page, BlockState::free);
  const History history = history_of(*trace);
  ASSERT_EQ(history.pages.size(), 3u);
  std::uint64_t gone = 0, stays = 0;
  for (const PageLife& page : history.pages) (page.end == 2 ? gone : stays) += page.size;
  EXPECT_EQ(gone, lab_page);
  EXPECT_EQ(stays, 3 * lab_page);
}

TEST(History, SurvivesContradictoryTraces) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  TraceBuilder trace;
  trace.allocate(0, 64).allocate(0, 128).free(0, 128).free(0, 128);             // over a live one, twice
  trace.allocate(most - lab_base, most).map(most - lab_base - 5, most).step();  // beyond the last address
  trace.unmap(0, most).unmap(lab_page, 0).remains(0, most, BlockState::live);
  trace->events.push_back({.kind = static_cast<TraceKind>(200)});
  const History history = history_of(*trace);
  for (const BlockLife& block : history.blocks) {
    EXPECT_LE(block.begin, block.given_back);
    EXPECT_LE(block.given_back, block.end);
    EXPECT_LE(block.end, trace->events.size() + 1);
    EXPECT_GE(block.address + block.size, block.address);
  }
  EXPECT_EQ(samples_of(history, trace->events.size(), 100).size(), trace->events.size() + 1);
  EXPECT_FALSE(used_addresses(history).empty());
}

TEST(History, IsEmptyForAnEmptyTrace) {
  const History history = history_of(Trace());
  EXPECT_TRUE(history.blocks.empty() && history.pages.empty());
  EXPECT_EQ(samples_of(history, 0, 10).size(), 1u);
  EXPECT_TRUE(used_addresses(history).empty());
}

TEST(Samples, CountBytesByCategoryAndState) {
  TraceBuilder trace;
  trace.map(0, lab_page).allocate(0, 1000, Category::gradient).allocate(4096, 500, Category::gradient);
  trace->events.back().slack = 12;
  trace.request_free(0, 1000).complete_free(0, 1000).remains(0, lab_page, BlockState::free);
  const std::vector<Sample> samples = samples_of(history_of(*trace), 5, 100);
  ASSERT_EQ(samples.size(), 6u);
  const auto of_gradient = [&](std::size_t i) {
    return samples[i].requested[static_cast<std::size_t>(Category::gradient)];
  };
  EXPECT_EQ(samples[0].reserved, 0u);
  EXPECT_EQ(samples[1].reserved, lab_page);
  EXPECT_EQ(of_gradient(2), 1000u);
  EXPECT_EQ(of_gradient(3), 1500u);
  EXPECT_EQ(samples[3].live, 1512u);
  EXPECT_EQ(of_gradient(4), 500u);
  EXPECT_EQ(samples[4].pending, 1000u);
  EXPECT_EQ(samples[5].pending, 0u);
  EXPECT_EQ(samples[5].live, 512u);
}

TEST(Samples, KeepThePeakOfLongTraces) {
  TraceBuilder trace;
  for (int i = 0; i < 500; ++i) trace.allocate(0, 64).free(0, 64);
  trace.allocate(0, 9999).free(0, 9999);
  for (int i = 0; i < 500; ++i) trace.allocate(0, 64).free(0, 64);
  const std::vector<Sample> samples = samples_of(history_of(*trace), trace->events.size(), 16);
  EXPECT_EQ(samples.size(), 17u);
  std::uint64_t peak = 0;
  for (std::size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GT(samples[i].moment, samples[i - 1].moment);
    peak = std::max(peak, samples[i].requested_in_all());
  }
  EXPECT_EQ(peak, 9999u);
}

TEST(UsedAddresses, CloseSmallGapsAndKeepLargeOnes) {
  TraceBuilder trace;
  trace.allocate(0, 64).allocate(lab_page, 64).allocate(100 * lab_page, 64).allocate(100 * lab_page + 64, 64);
  std::vector<std::uint64_t> found;
  for (const AddressRange& range : used_addresses(history_of(*trace))) {
    found.push_back(range.address - lab_base);
    found.push_back(range.size);
  }
  EXPECT_THAT(found, ElementsAre(0, lab_page + 64, 100 * lab_page, 128));
}

}  // namespace
}  // namespace poolgrad::examples
