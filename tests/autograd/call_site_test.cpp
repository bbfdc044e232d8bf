// Errors for exhausted memory and for stream races name the operator and the line of the program that called it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::error_of;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::int64_t side = 1024;  // a square f32 matrix of 4 MiB; its product takes 16 MiB of scratch

/// "call_site_test.cpp:123".
std::string at_line(unsigned line) { return "call_site_test.cpp:" + std::to_string(line); }

Device device_of(std::size_t bytes, int index) {
  configure_simulated_device(index, bytes);
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

Tensor square(Device device) { return zeros({side, side}, {DType::f32, device}); }

TEST(OperatorCallSite, AppearsInTheOutOfMemoryReport) {
  const Device small = device_of(10 * mebibyte, 81);
  const Tensor a = square(small), b = square(small);
  const unsigned line = __LINE__ + 1;
  const std::string report = error_of<OutOfMemoryError>([&] { matmul(a, b); });
  EXPECT_THAT(report, HasSubstr("\n  asked for by poolgrad::matmul at "));
  EXPECT_THAT(report, HasSubstr("/" + at_line(line) + "\n"));
}

TEST(OperatorCallSite, IsTheLineOfTheOuterOperator) {
  const Device small = device_of(10 * mebibyte, 81);
  const Tensor a = square(small), b = square(small);
  const unsigned line = __LINE__ + 1;
  const std::string report = error_of<OutOfMemoryError>([&] { mse_loss(a, b); });  // calls a - b inside
  EXPECT_THAT(report, AllOf(HasSubstr("\n  asked for by poolgrad::"), HasSubstr("/" + at_line(line) + "\n")));
}

TEST(OperatorCallSite, IsTheForwardLineWhenTheBackwardRunsOutOfMemory) {
  const Device small = device_of(34 * mebibyte, 82);
  const Tensor a = square(small).set_requires_grad(), b = square(small).set_requires_grad();
  const unsigned line = __LINE__ + 1;
  const Tensor product = matmul(a, b);
  const Tensor gradient = square(small);
  const std::string report = error_of<OutOfMemoryError>([&] { product.backward(gradient); });
  EXPECT_THAT(report, AllOf(HasSubstr("\n  asked for by matmul backward at "), HasSubstr("/" + at_line(line) + "\n")));
}

TEST(OperatorCallSite, IsTheLineOfAnOperatorSymbol) {
  const Device small = device_of(10 * mebibyte, 81);
  const Tensor a = square(small), b = square(small);
  const auto reported = [](const auto& symbol) {
    const auto [line, use] = symbol;
    const std::string report = error_of<OutOfMemoryError>(use);
    EXPECT_THAT(report, AllOf(HasSubstr("\n  asked for by poolgrad::"), HasSubstr("/" + at_line(line) + "\n")));
  };
#define POOLGRAD_SYMBOL(expression) std::pair(unsigned{__LINE__}, [&] { expression; })
  reported(POOLGRAD_SYMBOL(a + b));
  reported(POOLGRAD_SYMBOL(a - 1.0));
  reported(POOLGRAD_SYMBOL(2.0 * b));
  reported(POOLGRAD_SYMBOL(2.0 / b));
  reported(POOLGRAD_SYMBOL(-a));
  reported(POOLGRAD_SYMBOL(Tensor(a.copy()) += 1.0));
#undef POOLGRAD_SYMBOL
}

TEST(OperatorCallSite, ComesFromTheEnclosingCallSiteByDefault) {
  const Device small = device_of(10 * mebibyte, 81);
  const Tensor a = square(small), b = square(small);
  const CallSite here;
  const unsigned line = __LINE__ - 1;
  const std::string report = error_of<OutOfMemoryError>([&] { exp(a); });
  EXPECT_THAT(report, AllOf(HasSubstr("\n  asked for by poolgrad::"), HasSubstr("/" + at_line(line) + "\n")));
}

/// A device whose pool checks every access, on streams 0 and 7.
class RaceCallSite : public ::testing::Test {
 protected:
  static Device racing_device() {
    static const Device racing = [] {
      setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
      const Device made = device_of(64 * mebibyte, 83);
      unsetenv("POOLGRAD_ALLOCATOR");
      return made;
    }();
    return racing;
  }
  const Device device_ = racing_device();
  const Stream other_{device_, 7};
  CachingAllocator& pool_ = allocator_for(device_);
  const Tensor a_ = square(device_), b_ = square(device_);
};

TEST_F(RaceCallSite, NamesTheEarlierOperator) {
  const unsigned line = __LINE__ + 1;
  const Tensor product = matmul(a_, b_);
  const std::string race = error_of<DeviceError>([&] { pool_.use(product.storage()->data(), other_); });
  EXPECT_THAT(race, HasSubstr("stream 0 of sim:83 has used 4194304 bytes of them at " + at_line(line) +
                              " (poolgrad::matmul), and no event orders the two"));
}

TEST_F(RaceCallSite, NamesTheLaterOperator) {
  const Tensor row = zeros({1, side}, {DType::f32, device_});
  {
    const Tensor product = matmul(row, b_);
    pool_.order(other_, {device_, 0});
    // The pool does not know that stream 7 reads the block, so it reuses it.
    pool_.memory().touch(product.storage()->data(), sizeof(float) * side, other_, std::source_location::current(),
                         Access::reads);
  }
  const unsigned line = __LINE__ + 1;
  const std::string race = error_of<DeviceError>([&] { matmul(row, b_); });
  EXPECT_THAT(race, HasSubstr("[touch] stream 0 of sim:83 at " + at_line(line) + " (poolgrad::matmul) uses"));
  EXPECT_THAT(race, HasSubstr("but stream 7 of sim:83 has used 4096 bytes"));
}

TEST(OperatorCallSite, CoversTheScratchOfTheKernel) {
  const Device small = device_of(20 * mebibyte, 84);
  const Tensor a = square(small), b = square(small);
  const unsigned line = __LINE__ + 1;
  const std::string report = error_of<OutOfMemoryError>([&] { matmul(a, b); });
  EXPECT_THAT(report, AllOf(HasSubstr(" for workspace in gemm\n"), HasSubstr("/" + at_line(line) + "\n")));
}

}  // namespace
}  // namespace poolgrad
