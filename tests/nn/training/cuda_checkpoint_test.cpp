// Saves and loads CUDA tensors with little host memory.
#include <gtest/gtest.h>

#include <string>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "nn/training/checkpoint.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::nn {
namespace {

using testing_support::error_of;
using testing_support::TemporaryFolder;

constexpr Device first_device{DeviceType::cuda, 0};
constexpr std::size_t little = std::size_t{3} << 20;  // bytes of host memory

std::size_t host_bytes() { return allocator_for(cpu).statistics().allocated_bytes.current; }

/// Returns the peak of the CPU pool's bytes during an action, above those before.
template <class Action>
std::size_t host_peak(const Action& action) {
  const std::size_t before = host_bytes();
  allocator_for(cpu).reset_peaks();
  action();
  return allocator_for(cpu).statistics().allocated_bytes.peak - before;
}

/// Parameters of 5 MB and optimizer state of 10 MB.
struct RunOnDevice {
  RunOnDevice(std::uint64_t seed, Device device)
      : generator(seed),
        model(1001, 1300, {}, {.device = device, .generator = &generator}),
        optimizer(model.named_parameters()) {}
  void step() {
    const Tensor x = ones({2, 1001}, {DType::f32, model.weight().device()});
    model.zero_grad();
    sum(square(model(x))).backward();
    optimizer.step();
  }
  Generator generator;
  Linear model;
  AdamW optimizer;
};

TEST(CudaTrainingState, ContinuesBitForBitThroughASmallHostBuffer) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  RunOnDevice whole(1, first_device), resumed(2, first_device), on_host(3, cpu);
  whole.step();
  EXPECT_LT(host_peak([&] {
              save_training_state(path, whole.model, whole.optimizer, {.step = 1, .generator = {}, .metadata = {}});
            }),
            little);
  EXPECT_LT(host_peak([&] { EXPECT_EQ(load_training_state(path, resumed.model, resumed.optimizer).step, 1); }), little);
  load_training_state(path, on_host.model, on_host.optimizer);
  EXPECT_TRUE(bit_equal(whole.model.weight(), on_host.model.weight())) << "the file is every device's";
  for (RunOnDevice* run : {&whole, &resumed}) run->step();
  EXPECT_TRUE(bit_equal(whole.model.weight(), resumed.model.weight()));
  EXPECT_TRUE(bit_equal(whole.model.bias(), resumed.model.bias()));
  for (std::size_t i = 0; i < whole.optimizer.state().size(); ++i)
    EXPECT_TRUE(bit_equal(whole.optimizer.state()[i].second, resumed.optimizer.state()[i].second));
  EXPECT_EQ(pinned_allocator_for(first_device).statistics().allocation.current, 0u);
}

TEST(CudaTrainingState, RefusesAnotherModelWithoutChanges) {
  const TemporaryFolder folder;
  const std::string path = folder.file("state.safetensors");
  RunOnDevice saved(1, first_device);
  save_training_state(path, saved.model, saved.optimizer, {});
  Generator generator(2);
  Linear other(1001, 1301, {}, {.device = first_device, .generator = &generator});
  AdamW optimizer(other.named_parameters());
  const Tensor before = other.weight().copy();
  EXPECT_NE(error_of<ValueError>([&] { load_training_state(path, other, optimizer); }), "");
  EXPECT_TRUE(bit_equal(other.weight(), before));
}

TEST(CudaFiles, HaveTheBitsOfEveryDtypeAndLayout) {
  const TemporaryFolder folder;
  const std::string path = folder.file("some.safetensors"), array = folder.file("x.npy");
  Generator generator(test_seed());
  SafetensorsFile here, there;
  const Tensor wide = randn({3, 1 << 20}, {}, generator);  // six pieces
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    here.tensors.emplace_back(std::string(to_string(dtype)), to(wide.alias({{1000, 3}, {1, 1 << 20}, 5}), dtype));
  here.tensors.emplace_back("wide", wide);
  here.tensors.emplace_back("truth", less(wide, zeros_like(wide)));
  here.tensors.emplace_back("empty", zeros({0, 3}));
  for (const auto& [name, tensor] : here.tensors) there.tensors.emplace_back(name, to(tensor, first_device));
  const Tensor turned = there.at("wide").alias({{1 << 20, 3}, {1, 1 << 20}, 0});
  there.tensors.emplace_back("turned", turned);
  save_safetensors(path, there);
  const SafetensorsFile back = load_safetensors(path), moved = load_safetensors(path, first_device);
  for (const auto& [name, tensor] : here.tensors) {
    EXPECT_TRUE(bit_equal(back.at(name), tensor)) << name << "; seed " << test_seed();
    EXPECT_EQ(moved.at(name).device(), first_device);
    EXPECT_TRUE(bit_equal(moved.at(name), tensor)) << name << "; seed " << test_seed();
  }
  EXPECT_TRUE(bit_equal(back.at("turned"), turned));
  save_npy(array, turned);
  EXPECT_TRUE(bit_equal(load_npy(array), turned));

  Tensor gaps = zeros({1 << 20, 6}, {DType::f32, first_device});
  SafetensorsReader(path).read("turned", gaps.alias({{1 << 20, 3}, {6, 2}, 1}));
  EXPECT_TRUE(bit_equal(gaps.alias({{1 << 20, 3}, {6, 2}, 1}), turned));
  EXPECT_TRUE(bit_equal(gaps.alias({{1 << 20, 3}, {6, 2}, 0}), zeros({1 << 20, 3})));
  EXPECT_EQ(
      error_of<ValueError>([&] { SafetensorsReader(path).read("wide", gaps); }),
      "[read] tensor 'wide' does not fit: in the file (3, 1048576) f32 on cpu, wanted (1048576, 6) f32 on cuda:0");
}

}  // namespace
}  // namespace poolgrad::nn
