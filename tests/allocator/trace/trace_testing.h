// Shared by the tests of traces: comparing traces, and the seed of random ones.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "allocator/trace/trace.h"
#include "tests/test_seed.h"

namespace poolgrad {

// Used by GoogleTest and by comparisons of vectors.
inline bool operator==(const BlockSnapshot& a, const BlockSnapshot& b) {
  const auto fields = [](const BlockSnapshot& block) {
    return std::make_tuple(block.address, block.size, block.state, block.stream, block.epoch, block.window,
                           block.number, block.requested, block.tag.category, block.tag.scope);
  };
  return fields(a) == fields(b);
}

inline void PrintTo(const TraceEvent& event, std::ostream* out) {
  *out << to_string(event.kind) << " at " << std::hex << event.address << std::dec << " size " << event.size << " time "
       << event.time << " number " << event.allocation;
}

inline void PrintTo(const BlockSnapshot& block, std::ostream* out) {
  *out << to_string(block.state) << " at " << std::hex << block.address << std::dec << " size " << block.size
       << " requested " << block.requested << " window " << block.window << " number " << block.number;
}

namespace testing_support {

/// Index of the first difference; prints no equal items, as there may be millions.
template <typename Items>
void expect_same_items(const Items& actual, const Items& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i], expected[i]) << what << " " << i;
}

inline void expect_same_trace(const Trace& actual, const Trace& expected) {
  EXPECT_EQ(actual.device, expected.device);
  EXPECT_EQ(actual.start_us, expected.start_us);
  EXPECT_EQ(actual.lost, expected.lost);
  EXPECT_EQ(actual.settings, expected.settings);
  EXPECT_EQ(actual.streams, expected.streams);
  EXPECT_EQ(actual.scopes, expected.scopes);
  EXPECT_EQ(actual.locations, expected.locations);
  expect_same_items(actual.events, expected.events, "event");
  expect_same_items(actual.blocks, expected.blocks, "block");
}

}  // namespace testing_support
}  // namespace poolgrad
