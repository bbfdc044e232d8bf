// Tensors on a simulated device: memory is counted to the byte, kernels compute nothing, and all reads return zero.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing::Each;
using testing_support::error_of;

const Device sim = Device::parse("sim:0");

std::uint64_t simulated_bytes() { return allocator_for(sim).statistics().requested_bytes.current; }

TEST(SimulatedTensor, TakesItsMemoryFromThePoolOfItsDevice) {
  const std::uint64_t before = simulated_bytes(), host = allocator_for(cpu).statistics().requests;
  {
    const Tensor x = zeros({1000, 1000}, {.device = sim});
    EXPECT_EQ(simulated_bytes(), before + 4'000'000);
    EXPECT_EQ(describe(x), "(1000, 1000) f32 on sim:0");
  }
  EXPECT_EQ(simulated_bytes(), before);
  EXPECT_EQ(allocator_for(cpu).statistics().requests, host);
}

TEST(SimulatedTensor, MayBeLargerThanThisMachine) {
  configure_simulated_device(7, std::size_t{768} << 30);
  const Device big = Device::parse("sim:7");
  const Tensor x = ones({std::int64_t{1} << 37}, {.device = big});
  EXPECT_EQ(x.numel(), std::int64_t{1} << 37);
  EXPECT_EQ(to_string(x), "[0. 0. 0. ... 0. 0. 0.] on sim:7");
  EXPECT_THROW(ones({std::int64_t{1} << 38}, {.device = big}), OutOfMemoryError);
}

TEST(SimulatedTensor, ReadsAsZeros) {
  const Tensor x = ones({3}, {.dtype = DType::i64, .device = sim});
  EXPECT_EQ(full({}, 5, {.device = sim}).item(), 0.0);
  EXPECT_THAT(x.to_vector<double>(), Each(0.0));
  EXPECT_EQ(x.to_vector<double>().size(), 3u);
  EXPECT_EQ(to_string(x), "[0 0 0] i64 on sim:0");
  EXPECT_EQ(to_string(zeros({2, 0}, {.device = sim})), "[] shape (2, 0) on sim:0");
  EXPECT_TRUE(bit_equal(x.on_host(), zeros({3}, {.dtype = DType::i64})));
  EXPECT_TRUE(allclose(x, zeros({3}, {.dtype = DType::i64})));
  EXPECT_EQ(error_of<DeviceError>([&] { x.data<std::int64_t>(); }),
            "[data] memory outside the CPU cannot be read: (3,) i64 on sim:0");
}

TEST(SimulatedTensor, SupportsCopies) {
  Tensor there = Tensor::empty({2, 2}, {.device = sim});
  there.copy_from(ones({2}));
  EXPECT_EQ(there.storage()->version(), 1u);
  Tensor here = ones({2, 2});
  here.copy_from(there);
  EXPECT_THAT(here.to_vector<float>(), Each(0.0f));
  there.copy_from(there.alias(transposed(there.geometry(), 0, 1)));
  EXPECT_EQ(there.copy().device(), sim);
  EXPECT_EQ(error_of<ShapeError>([&] { there.copy_from(ones({3})); }),
            "[copy_from] the source does not broadcast to the destination: destination (2, 2) f32 on sim:0, source "
            "(3,) f32 on cpu");
}

TEST(SimulatedTensor, IsMadeByEveryCreationFunction) {
  Generator generator(1), reference(1);
  const TensorOptions options{.device = sim};
  EXPECT_EQ(randn({5}, options, generator).device(), sim);
  randn({5}, {}, reference);
  EXPECT_EQ(rand({5}, 0, 1, options, generator).device(), sim);
  rand({5}, 0, 1, {}, reference);
  EXPECT_EQ(randint(0, 9, {5}, options, generator).device(), sim);
  randint(0, 9, {5}, {}, reference);
  EXPECT_EQ(generator.state().offset, reference.state().offset) << "as on the CPU";
  EXPECT_EQ(arange(0, 5, 1, options).device(), sim);
  EXPECT_EQ(from_data({1.0f, 2.0f}, {2}, sim).device(), sim);
  EXPECT_EQ(scalar(1, options).device(), sim);
}

TEST(SimulatedTensor, ViewsFollowTheSameRules) {
  const Tensor x = Tensor::empty({4, 8}, {.device = sim});
  const Tensor row = x.alias(selected(x.geometry(), 0, 3));
  EXPECT_EQ(static_cast<char*>(row.view().data) - static_cast<char*>(x.view().data), 3 * 8 * 4);
  EXPECT_THROW(x.alias({{33}, {1}, 0}), ShapeError);
}

}  // namespace
}  // namespace poolgrad
