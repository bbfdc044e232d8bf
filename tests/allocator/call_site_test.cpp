#include "allocator/memory_scope.h"

#include <gtest/gtest.h>

#include <string>

namespace poolgrad {
namespace {

/// What is recorded of an allocation that is made here.
std::source_location recorded(std::source_location inside = std::source_location::current()) {
  return CallSite::of(inside);
}

unsigned line_of(CallSite = {}) { return recorded().line(); }

TEST(CallSite, IsTheLineOfTheCallThatTookOneAsAParameter) {
  EXPECT_EQ(line_of(), static_cast<unsigned>(__LINE__));
  EXPECT_EQ(CallSite::current().line(), 0u) << "and is over with the call";
}

TEST(CallSite, TheOutermostCounts) {
  const CallSite outer;
  const unsigned line = __LINE__ - 1;
  EXPECT_EQ(line_of(), line);
  const CallSite inner;
  EXPECT_EQ(CallSite::current().line(), line);
}

TEST(CallSite, WithoutOneTheCodeThatAllocatesIsRecordedAsItIs) {
  const auto at = std::source_location::current();
  const auto same = CallSite::of(at);
  EXPECT_EQ(same.line(), at.line());
  EXPECT_EQ(same.function_name(), at.function_name());
}

TEST(CallSite, KeepsTheFunctionThatAllocatesBesideTheLineThatCounts) {
  const CallSite site;
  const auto place = CallSite::of(std::source_location::current());
  EXPECT_EQ(place.line(), static_cast<unsigned>(__LINE__) - 2);
  EXPECT_STREQ(place.file_name(), __FILE__);
  EXPECT_NE(std::string(place.function_name()).find("TestBody"), std::string::npos);
  EXPECT_EQ(recorded().function_name(), recorded().function_name()) << "one place, however often it is asked for";
}

TEST(CallSite, NamesTheBackwardOfAnOperatorAndPutsItDownToItsForward) {
  const std::string name = "matmul";
  const auto forward = std::source_location::current();
  {
    const CallSite backward(name, forward);
    EXPECT_EQ(recorded().line(), forward.line());
    EXPECT_STREQ(recorded().function_name(), "matmul backward");
    const CallSite inside;
    EXPECT_EQ(recorded().line(), forward.line());
  }
  const CallSite site;
  const unsigned line = __LINE__ - 1;
  const CallSite unknown(name, {});
  EXPECT_EQ(recorded().line(), line) << "where the forward is unknown, the line in force";
  EXPECT_STREQ(recorded().function_name(), "matmul backward");
}

TEST(FunctionName, LeavesResultParametersAndBindingsOut) {
  EXPECT_EQ(function_name("T ns::Pool<T>::take(int) [with T = float]"), "ns::Pool<T>::take");
  EXPECT_EQ(function_name("poolgrad::Tensor poolgrad::matmul(const poolgrad::Tensor&, CallSite)"), "poolgrad::matmul");
  EXPECT_EQ(function_name("matmul backward"), "matmul backward");
}

}  // namespace
}  // namespace poolgrad
