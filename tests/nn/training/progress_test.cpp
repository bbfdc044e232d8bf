#include "nn/training/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace poolgrad::nn {
namespace {

TEST(Progress, ShowsDurationsCountsAndCurves) {
  EXPECT_EQ(format_duration(7.2), "0:07");
  EXPECT_EQ(format_duration(151), "2:31");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(33312), "33.3k");
  EXPECT_EQ(format_count(1234567), "1.23M");
  EXPECT_EQ(sparkline({3, 2, 1}), "█▄▁");
  EXPECT_EQ(sparkline({1, 1}), "▁▁");
  EXPECT_EQ(sparkline({}), "");
  EXPECT_EQ(sparkline(std::vector<double>(1000, 2.0), 5), "▁▁▁▁▁");
  EXPECT_EQ(bar(0.5, 10), "[#####-----]");
  EXPECT_EQ(bar(2.0, 4), "[####]");
}

TEST(Progress, DrawsALiveLineOnlyWhereAsked) {
  std::ostringstream plain, live;
  {
    Progress a(plain, false), b(live, true);
    for (Progress* progress : {&a, &b}) {
      progress->status("working");
      progress->line("done");
    }
  }
  EXPECT_EQ(plain.str(), "done\n");
  EXPECT_EQ(live.str(), "\r\x1b[Kworking\r\x1b[Kdone\n");
}

}  // namespace
}  // namespace poolgrad::nn
