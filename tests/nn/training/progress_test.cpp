#include "nn/training/progress.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string_view>
#include <thread>

#include "allocator/memory_scope.h"

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

TEST(ScopeStatus, ShowsWhereItsThreadIs) {
  std::ostringstream live;
  Progress progress(live, true);
  {
    const ScopeStatus status(progress, "step 1/2", 0);
    std::thread([] { const MemoryScope scope("other_thread"); }).join();
    EXPECT_EQ(live.str(), "");
    const MemoryScope outer(Category::temp), inner("block3");
    EXPECT_EQ(live.str(), "\r\x1b[Kstep 1/2  0:00  block3");
  }
  const std::string drawn = live.str();
  const MemoryScope later("block4");
  EXPECT_EQ(live.str(), drawn);
}

TEST(ScopeStatus, ShowsTheWholePathOfAScopeThatTheBackwardEntersAgain) {
  Tag tag;
  {
    const MemoryScope model("model"), block("block3");
    tag = current_tag();
  }
  std::ostringstream live;
  Progress progress(live, true);
  const ScopeStatus status(progress, "step 1/2", 0);
  const MemoryScope again(tag);
  EXPECT_EQ(live.str(), "\r\x1b[Kstep 1/2  0:00  model.block3");
}

TEST(ScopeStatus, IsPatient) {
  std::ostringstream live;
  Progress progress(live, true);
  const ScopeStatus status(progress, "step 1/2", 3600);
  const MemoryScope scope("model");
  EXPECT_EQ(live.str(), "");
}

TEST(ScopeStatus, PassesScopesOnToWhoWasToldBefore) {
  struct Names : ScopeListener {
    void begins(std::string_view name) noexcept override { began += name; }
    void ends() noexcept override { began += ';'; }
    std::string began;
  };
  static Names names;
  ScopeListener* const before = listen_to_scopes(&names);
  {
    std::ostringstream live;
    Progress progress(live, true);
    const ScopeStatus status(progress, "step 1/2");
    const MemoryScope scope("a");
  }
  { const MemoryScope scope("b"); }
  EXPECT_EQ(listen_to_scopes(before), &names);
  EXPECT_EQ(names.began, "a;b;");
}

}  // namespace
}  // namespace poolgrad::nn
