#include "kernels/profile.h"

#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/dispatch.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

constexpr Stream on_host{Device{DeviceType::cpu, 0}};

TEST(KernelProfile, RecordsTheNameBytesAndOperationsOfEachCall) {
  TestArray a(DType::f32, {3, 5}), b(DType::f32, {5, 7}), c(DType::f32, {3, 7}), d(DType::f32, {3, 7});
  const KernelProfile profile;
  {
    const MemoryScope scope("products");
    gemm(on_host, {.m = 3, .n = 7, .k = 5, .lda = 5, .ldb = 7, .ldc = 7}, a.view().data, b.view().data, c.view().data);
  }
  unary(on_host, UnaryOp::exp, d.view(), c.view());
  binary(on_host, BinaryOp::add, d.view(), d.view(), c.view());
  const std::vector<KernelCall> calls = profile.calls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].kernel, "gemm");
  EXPECT_EQ(calls[0].kind, "");
  EXPECT_EQ(scope_name(calls[0].scope), "products");
  EXPECT_EQ(calls[0].operations, 2.0 * 3 * 5 * 7);
  EXPECT_EQ(calls[0].bytes, 4.0 * (3 * 5 + 5 * 7 + 3 * 7));
  EXPECT_EQ(calls[1].kernel, "unary");
  EXPECT_EQ(calls[1].kind, "exp");
  EXPECT_EQ(calls[1].bytes, 4.0 * 2 * 21);
  EXPECT_EQ(calls[1].operations, 0);
  EXPECT_EQ(calls[2].kind, "add");
  EXPECT_EQ(calls[2].bytes, 4.0 * 3 * 21);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_LE(calls[i].nanoseconds, calls[i].span);
    EXPECT_GE(calls[i].begin, i == 0 ? 1 : calls[i - 1].begin + calls[i - 1].span) << i;
  }
}

TEST(KernelProfile, CountsEveryReadAndWriteOfAnUpdate) {
  TestArray p(DType::f32, {10}), g(DType::f32, {10}), m(DType::f32, {10}), v(DType::f32, {10});
  const KernelProfile profile;
  const UpdateOperands one{p, g, {m, v}};
  adamw(on_host, {}, std::span(&one, 1));
  ASSERT_EQ(profile.calls().size(), 1u);
  EXPECT_EQ(profile.calls()[0].bytes, 4.0 * 10 * 7) << "all are read, all but the gradient are written";
}

TEST(KernelProfile, EndsWithItsScopeAndRejectsASecondOne) {
  TestArray x(DType::f32, {4});
  {
    const KernelProfile profile;
    EXPECT_THROW(KernelProfile(), ValueError);
    EXPECT_NE(timed_kernels(), nullptr) << "the first goes on";
    EXPECT_THROW(unary(on_host, UnaryOp::exp, TestArray(DType::i64, {4}).view(), TestArray(DType::i64, {4}).view()),
                 DTypeError);
    fill(on_host, x.view(), 3.0);
    EXPECT_EQ(profile.calls().size(), 1u) << "what was refused is no call";
  }
  EXPECT_EQ(timed_kernels(), nullptr);
  fill(on_host, x.view(), 4.0);
  const KernelProfile next;
  EXPECT_TRUE(next.calls().empty());
}

TEST(KernelProfile, LeavesOutSimulatedDevices) {
  const KernelProfile profile;
  float nothing = 0;  // a sim device does not access it
  fill(Stream{Device{DeviceType::sim, 3}}, View{&nothing, DType::f32, 1, {5}, {1}}, 1);
  EXPECT_TRUE(profile.calls().empty());
  EXPECT_EQ(nothing, 0);
}

}  // namespace
}  // namespace poolgrad::kernels
