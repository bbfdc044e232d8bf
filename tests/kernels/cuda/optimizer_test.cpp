// Optimizer steps on CUDA have the CPU's bits, for any number of tensors, sizes and dtypes.
#include "kernels/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

/// Parameters of these sizes, with the floating dtypes in turn. Each has a gradient and `moments` arrays of its compute
/// dtype.
class Tensors {
 public:
  Tensors(const std::vector<std::int64_t>& sizes, std::size_t moments, std::mt19937_64& random)
      : operands_(2 + moments) {
    for (std::size_t i = 0; i < sizes.size(); ++i)
      for (std::size_t k = 0; k < operands_; ++k) {
        const DType dtype = floats[i % 4];
        arrays_.push_back(std::make_unique<TestArray>(k < 2 ? dtype : compute_dtype(dtype), Shape{sizes[i]}));
        arrays_.back()->random(random, k == operands_ - 1 && k > 1 ? 0 : -2, 2);
      }
  }
  std::vector<TestArray*> all() const {
    std::vector<TestArray*> result;
    for (const auto& array : arrays_) result.push_back(array.get());
    return result;
  }
  /// The kernel's operands, from the views of expect_same().
  std::vector<UpdateOperands> group(const std::vector<View>& views) const {
    std::vector<UpdateOperands> result;
    for (std::size_t i = 0; i < views.size(); i += operands_) {
      UpdateOperands& one = result.emplace_back(UpdateOperands{views[i], views[i + 1]});
      for (std::size_t k = 2; k < operands_; ++k) one.state[k - 2] = views[i + k];
    }
    return result;
  }

 private:
  std::size_t operands_;
  std::vector<std::unique_ptr<TestArray>> arrays_;
};

const std::vector<std::vector<std::int64_t>> sizes_of_models = {
    {}, {0, 0, 0, 0}, {1, 2, 3, 4}, {33, 0, 1025, 16384, 16385, 16383}, {20000, 33001, 20002, 20003, 5}};

TEST(CudaOptimizer, AdamWTakesTheStepsOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const auto& sizes : sizes_of_models) {
    const Tensors tensors(sizes, 2, random);
    for (std::int64_t step = 1; step <= 2; ++step)
      expect_same(
          bits, tensors.all(), {},
          [&](Stream stream, const std::vector<View>& views) {
            const AdamW options{0.01, 0.9, 0.99, 1e-8, 0.1, step, 0.37};
            adamw(stream, options, tensors.group(views));
          },
          2);
  }
}

TEST(CudaOptimizer, AdamWithAmsgradTakesTheStepsOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const auto& sizes : sizes_of_models) {
    const Tensors tensors(sizes, 3, random);
    expect_same(
        bits, tensors.all(), {},
        [&](Stream stream, const std::vector<View>& views) {
          adamw(stream, {.weight_decay = 0.1, .step = 2, .gradient_scale = 0.37, .coupled = true, .amsgrad = true},
                tensors.group(views));
        },
        2);
  }
}

TEST(CudaOptimizer, RmsPropTakesTheStepsOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const auto& sizes : sizes_of_models)
    for (const double momentum : {0.0, 0.9})
      for (const bool centered : {true, false}) {
        const RmsProp options{.weight_decay = 0.1, .momentum = momentum, .centered = centered, .gradient_scale = 0.37};
        const Tensors tensors(sizes, options.states(), random);
        expect_same(
            bits, tensors.all(), {},
            [&](Stream stream, const std::vector<View>& views) { rmsprop(stream, options, tensors.group(views)); }, 2);
      }
}

TEST(CudaOptimizer, AddGradientMatchesTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const auto& sizes : sizes_of_models)
    for (const bool first : {true, false}) {
      const Tensors tensors(sizes, 1, random);
      expect_same(bits, tensors.all(), {}, [&](Stream stream, const std::vector<View>& views) {
        add_gradient(stream, {.first = first}, tensors.group(views));
        add_gradient(stream, {}, tensors.group(views));
      });
    }
}

TEST(CudaOptimizer, SgdTakesTheStepsOfTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const auto& sizes : sizes_of_models)
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true})
        for (const bool first : {true, false}) {
          const Tensors tensors(sizes, momentum == 0 ? 0 : 1, random);
          expect_same(bits, tensors.all(), {}, [&](Stream stream, const std::vector<View>& views) {
            const Sgd options{0.1, momentum, 0.01, 0.25, nesterov, first, 2.0};
            sgd(stream, options, tensors.group(views));
          });
        }
}

TEST(CudaOptimizer, UpdatesMoreTensorsThanOneLaunchHolds) {
  std::mt19937_64 random(test_seed());
  for (const std::size_t count : {63u * 4, 64u * 4, 65u * 4}) {
    const Tensors tensors(std::vector<std::int64_t>(count, 7), 2, random);
    expect_same(bits, tensors.all(), {}, [&](Stream stream, const std::vector<View>& views) {
      adamw(stream, {.step = 3}, tensors.group(views));
    });
  }
}

TEST(CudaOptimizer, SupportsMisalignedPacks) {
  std::mt19937_64 random(test_seed());
  const Tensors tensors({1003, 1000, 1001, 1004}, 2, random);
  expect_same(bits, tensors.all(), {}, [&](Stream stream, const std::vector<View>& views) {
    std::vector<View> part = views;
    for (View& view : part) {  // one element further
      view.data = view.as<std::uint8_t>() + size_of(view.dtype);
      --view.shape[0];
    }
    adamw(stream, {.step = 1}, tensors.group(part));
  });
}

TEST(CudaOptimizer, TakesItsGradientScaleFromTheDevice) {
  std::mt19937_64 random(test_seed());
  for (const double number : {0.37, std::nan("")}) {
    TestArray scale(DType::f64, {1});
    scale.fill([&](std::int64_t) { return number; });
    const auto on = [](const View& view) { return view.as<const double>(); };
    const Tensors moments({1025, 3, 20000, 5}, 2, random), buffers({1025, 3, 20000, 5}, 1, random),
        none({1025, 3, 20000, 5}, 0, random);
    expect_same(bits, moments.all(), {&scale}, [&](Stream stream, std::vector<View> views) {
      const AdamW options{.gradient_scale = -1, .device_scale = on(views.back())};
      views.pop_back();
      adamw(stream, options, moments.group(views));
    });
    for (const Tensors* const tensors : {&buffers, &none})
      expect_same(bits, tensors->all(), {&scale}, [&](Stream stream, std::vector<View> views) {
        const Sgd options{.momentum = tensors == &none ? 0.0 : 0.9, .device_scale = on(views.back())};
        views.pop_back();
        sgd(stream, options, tensors->group(views));
      });
    if (number == 0.37) scale.fill([](std::int64_t) { return 0.25; });  // products are the same, fused or not
    for (const DType dtype : floats) {
      TestArray x(dtype, {33, 7}), y(dtype, {33, 7}), out(dtype, {33, 7});
      x.random(random), y.random(random), out.random(random);
      for (const bool of_gradient : {true, false})
        expect_same(bits, {&out}, {&x, &y, &scale}, [&](Stream stream, const std::vector<View>& v) {
          weighted_sum(stream, v[0], {.a = 0.5, .b = 0.25, .of_gradient = of_gradient, .device_scale = on(v[3])}, v[1],
                       v[2]);
        });
    }
  }
}

}  // namespace
}  // namespace poolgrad::kernels
