// Random numbers on CUDA have the CPU's bits, for every offset and layout of a range.
#include "kernels/random.h"

#include <gtest/gtest.h>

#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<std::uint64_t> beginnings = {0, 1, 2, 3, 1022, (std::uint64_t{1} << 40) + 3};

/// Calls run(stream, key, out, x) for every dtype, shape, layout and offset of a range.
template <class Make>
void expect_numbers_of_the_cpu(const Make& make) {
  std::mt19937_64 random(test_seed());
  const auto compare = [&](DType dtype, const Shape& shape, Layout from, Layout to, std::uint64_t offset) {
    TestArray x(dtype, shape, from), out(dtype, shape, to);
    x.random(random);
    const RandomKey key{random(), random() >> 8, offset};
    expect_same(
        bits, {&out}, {&x},
        [&](Stream stream, const std::vector<View>& operands) { make(stream, key, operands[0], operands[1]); }, 2);
  };
  for (const DType dtype : floats) {
    for (const Shape& shape : twin_shapes)
      for (const std::uint64_t offset : beginnings)
        compare(dtype, shape, Layout::contiguous, Layout::contiguous, offset);
    for (const Layout from : input_layouts)
      for (const Layout to : output_layouts)
        for (const std::int64_t columns : {13, 24}) compare(dtype, {7, 5, columns}, from, to, 4);
  }
}

TEST(CudaRandom, UniformNumbersMatchTheCpu) {
  for (const double high : {1.0, 3.7, -0.5})
    expect_numbers_of_the_cpu([&](Stream stream, const RandomKey& key, const View& out, const View&) {
      uniform(stream, key, out, -1.3, high);
    });
}

TEST(CudaRandom, NormalNumbersMatchTheCpu) {
  expect_numbers_of_the_cpu(
      [](Stream stream, const RandomKey& key, const View& out, const View&) { normal(stream, key, out, 0.3, 1.7); });
}

TEST(CudaRandom, DropoutMatchesTheCpu) {
  for (const double p : {0.0, 0.3, 1.0})
    expect_numbers_of_the_cpu(
        [&](Stream stream, const RandomKey& key, const View& out, const View& x) { dropout(stream, key, out, x, p); });
}

TEST(CudaRandom, ManyNumbersMatchTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    TestArray out(dtype, {1 << 18});
    expect_same(bits, {&out}, {}, [](Stream stream, const std::vector<View>& operands) {
      normal(stream, {3, 4, 0}, operands[0], 0, 1);
    });
  }
}

TEST(CudaRandom, SupportsMisalignedPacks) {
  TestArray x(DType::f32, {1003}), out(DType::f32, {1003});
  x.fill([](std::int64_t i) { return static_cast<double>(i); });
  expect_same(bits, {&out}, {&x}, [](Stream stream, const std::vector<View>& operands) {
    View to = operands[0], from = operands[1];
    to.data = to.as<float>() + 1;
    to.shape[0] = from.shape[0] = 1000;
    dropout(stream, {5, 6, 8}, to, from, 0.5);
  });
}

}  // namespace
}  // namespace poolgrad::kernels
