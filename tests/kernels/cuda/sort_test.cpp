// Sorted rows on the emulated device: the indices equal the CPU's, which other tests compare with a stable sort.
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "kernels/reduce.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

// Shorter than a run; a whole run; one more; several runs to merge, also when their number is not a power of two.
const std::vector<Shape> sort_shapes = {{1}, {33}, {256}, {257}, {2, 512}, {31, 33}, {2, 1, 700}, {1025}, {0, 5}};

TEST(CudaArgsort, MatchesTheOrderOfTheCpuForEveryDtype) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : sort_shapes)
      for (const bool descending : {false, true})
        for (const std::int64_t kept : {shape.back(), (shape.back() + 2) / 3}) {
          Shape result = shape;
          result.back() = kept;
          TestArray x(dtype, shape), out(DType::i64, result);
          x.random(random, dtype == DType::u8 || dtype == DType::boolean ? 0 : -20, 20);
          for (std::int64_t i = 0; i < x.count(); i += 2)
            x.set(i, i % 14 == 0 && is_floating(dtype) ? nan : std::floor(x[i]));
          expect_same(bits, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
            argsort(stream, operands[0], operands[1], descending);
          });
        }
}

TEST(CudaArgsort, SupportsAnyLayout) {
  std::mt19937_64 random(test_seed());
  for (const Layout from : input_layouts)
    for (const Layout to : output_layouts)
      for (const Shape& shape : {Shape{5, 3, 20}, Shape{3, 300}}) {
        TestArray x(DType::f32, shape, from), out(DType::i64, shape, to);
        x.random(random);
        expect_same(bits, {&out}, {&x}, [](Stream stream, const std::vector<View>& operands) {
          argsort(stream, operands[0], operands[1], true);
        });
      }
}

TEST(CudaArgsort, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::bf16, {3, 1500}), out(DType::i64, {3, 1500});
  x.random(random, 0, 9);
  expect_same(
      bits, {&out}, {&x},
      [](Stream stream, const std::vector<View>& operands) { argsort(stream, operands[0], operands[1], false); }, 3);
}

TEST(CudaArgsort, MatchesTheRequestsOfASimulatedDevice) {
  const Stream sim{Device{DeviceType::sim, 0}};
  for (const Shape& shape : {Shape{7, 256}, Shape{7, 257}}) {
    TestArray x(DType::f32, shape), out(DType::i64, shape);
    x.zero();
    const Twin from(x), to(out);
    const auto hash_of = [&](Stream stream, const View& result, const View& source) {
      CachingAllocator& pool = allocator_for(stream.device);
      pool.reset_sequence_hash();
      argsort(stream, result, source, false);
      return pool.sequence_hash();
    };
    EXPECT_EQ(hash_of(cuda0, to.on_device(), from.on_device()), hash_of(sim, out, x));
  }
}

}  // namespace
}  // namespace poolgrad::kernels
