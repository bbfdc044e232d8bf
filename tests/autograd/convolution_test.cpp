// Convolutions and pooling compared with seven plain loops, over chunks of images, and their live memory.
#include "autograd/operators/convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using testing_support::error_of;
constexpr TensorOptions exact{.dtype = DType::f64};

/// conv2d by its definition.
Tensor convolution_in_loops(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  const auto of = [](const Dims& list, int d) { return list[std::min(d, list.rank() - 1)]; };
  const std::vector<double> in = x.to_vector<double>(), w = weight.to_vector<double>(), b = bias.to_vector<double>();
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3), outputs = weight.size(0);
  const std::int64_t inner = weight.size(1), kh = weight.size(2), kw = weight.size(3);
  const auto steps = [&](int d, std::int64_t length, std::int64_t size) {
    return (length + 2 * of(options.padding, d) - of(options.dilation, d) * (size - 1) - 1) / of(options.stride, d) + 1;
  };
  const std::int64_t rows = steps(0, height, kh), columns = steps(1, width, kw);
  std::vector<double> out;
  for (std::int64_t n = 0; n < x.size(0); ++n)
    for (std::int64_t o = 0; o < outputs; ++o)
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) {
          double total = b[static_cast<std::size_t>(o)];
          for (std::int64_t c = 0; c < inner; ++c)
            for (std::int64_t ki = 0; ki < kh; ++ki)
              for (std::int64_t kj = 0; kj < kw; ++kj) {
                const std::int64_t y =
                    i * of(options.stride, 0) + ki * of(options.dilation, 0) - of(options.padding, 0);
                const std::int64_t z =
                    j * of(options.stride, 1) + kj * of(options.dilation, 1) - of(options.padding, 1);
                if (y < 0 || y >= height || z < 0 || z >= width) continue;
                const std::int64_t channel = o / (outputs / options.groups) * inner + c;
                total += in[static_cast<std::size_t>(((n * channels + channel) * height + y) * width + z)] *
                         w[static_cast<std::size_t>(((o * inner + c) * kh + ki) * kw + kj)];
              }
          out.push_back(total);
        }
  return from_data(out, {x.size(0), outputs, rows, columns});
}

TEST(Convolution, AgreesWithPlainLoops) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  Generator generator(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  for (int round = 0; round < 60; ++round) {
    ConvOptions options{.stride = {1 + below(3), 1 + below(2)},
                        .padding = {below(3), below(3)},
                        .dilation = {1 + below(2), 1 + below(3)},
                        .groups = 1 + below(3)};
    const Shape kernel{options.groups * (1 + below(2)), 1 + below(3), 1 + below(3), 1 + below(3)};
    const Shape shape{below(4), kernel[1] * options.groups, 5 + below(4), 7 + below(3)};
    const Tensor x = randn(shape, exact, generator), w = randn(kernel, exact, generator),
                 b = randn(kernel[0], exact, generator);
    EXPECT_TRUE(allclose(conv2d(x, w, b, options), convolution_in_loops(x, w, b, options), 1e-12, 1e-12))
        << "seed " << seed << ", round " << round << ": " << describe(x) << ", " << describe(w);
    const Tensor turned = transpose(transpose(x, 2, 3).copy(), 2, 3);
    EXPECT_TRUE(bit_equal(conv2d(turned, w, b, options), conv2d(x, w, b, options)));
  }
}

TEST(Convolution, GivesALineTheResultOfAOneRowImage) {
  Generator generator(2);
  const Tensor x = randn({2, 4, 11}, exact, generator), w = randn({6, 2, 3}, exact, generator),
               b = randn(6, exact, generator);
  const ConvOptions line{.stride = 2, .padding = 3, .dilation = 2, .groups = 2};
  const ConvOptions image{.stride = {1, 2}, .padding = {0, 3}, .dilation = {1, 2}, .groups = 2};
  EXPECT_TRUE(bit_equal(conv1d(x, w, b, line), squeeze(conv2d(unsqueeze(x, 2), unsqueeze(w, 2), b, image), 2)));
}

TEST(Convolution, IsCausalWithLeftPadding) {
  Generator generator(3);
  const Tensor x = randn({1, 2, 9}, exact, generator), w = randn({3, 2, 4}, exact, generator);
  const auto causal = [&](const Tensor& signal) { return conv1d(pad(signal, -1, 3, 0), w); };
  Tensor later = x.copy();
  later[{0, 0, 6}] += 100.0;
  const Tensor before = causal(x), after = causal(later);
  EXPECT_TRUE(bit_equal(before[{ellipsis, slice(0, 6)}], after[{ellipsis, slice(0, 6)}]));
  EXPECT_FALSE(allclose(before[{ellipsis, 6}], after[{ellipsis, 6}]));
}

TEST(Convolution, GivesEachImageOfABatchItsOwnResult) {  // 512 K window elements each: nine images take two chunks
  Generator generator(4);
  const Tensor x = randn({9, 8, 64, 64}, {}, generator).set_requires_grad();
  const Tensor w = randn({3, 8, 4, 4}, {}, generator).set_requires_grad();
  const ConvOptions options{.padding = {1, 2}};
  const auto run = [&](const Tensor& images) {
    const Tensor leaf = images.detach().set_requires_grad();
    const Tensor out = conv2d(leaf, w, {}, options);
    std::vector<Tensor> results = grad({sum(square(out))}, {leaf, w});
    results.push_back(out.detach());
    return results;
  };
  const std::vector<Tensor> all = run(x);
  Tensor weight_gradient = zeros(w.shape());
  for (const std::int64_t n : {0, 7, 8}) {
    const std::vector<Tensor> one = run(x[slice(n, n + 1)]);
    EXPECT_TRUE(bit_equal(one[0], all[0][slice(n, n + 1)])) << n;
    EXPECT_TRUE(bit_equal(one[2], all[2][slice(n, n + 1)])) << n;
  }
  for (std::int64_t n = 0; n < 9; ++n) weight_gradient += run(x[slice(n, n + 1)])[1];
  EXPECT_LE(max_difference(weight_gradient, all[1]), 1e-5 * max(abs(all[1])).item());
}

TEST(Convolution, HoldsOneChunkOfWindowsAndFreesIt) {
  const std::int64_t images = 64, channels = 8, size = 64, each = channels * 9 * size * size;
  const Tensor x = zeros({images, channels, size, size}).set_requires_grad(),
               w = zeros({2, channels, 3, 3}).set_requires_grad();
  const CachingAllocator& pool = allocator_for(cpu);
  const auto alive = [&] { return pool.statistics().requested_bytes.current; };
  constexpr auto workspace = static_cast<std::size_t>(Category::workspace);
  const std::uint64_t before = alive();
  allocator_for(cpu).reset_peaks();
  {
    const Tensor y = conv2d(x, w, {}, {.padding = 1});
    EXPECT_EQ(alive() - before, static_cast<std::uint64_t>(4 * y.numel()));
    sum(y).backward();
  }
  const std::uint64_t peak = pool.statistics().category_bytes[workspace].peak;
  EXPECT_GT(peak, static_cast<std::uint64_t>(4 * each));
  EXPECT_LT(peak, static_cast<std::uint64_t>(4 * each * images / 2))
      << "four million windows, the sums they come back to";
}

TEST(Convolution, ComputesInTheAutocastDtype) {
  const Tensor x = ones({1, 2, 4}), w = ones({3, 2, 2}).set_requires_grad();
  const AutocastScope scope(DType::bf16);
  const Tensor y = conv1d(x, w);
  EXPECT_EQ(y.dtype(), DType::bf16);
  EXPECT_EQ(grad({sum(y)}, {w})[0].dtype(), DType::f32);
}

TEST(Convolution, NamesTheMismatchInErrors) {
  const Tensor x = ones({1, 3, 4, 4}), w = ones({2, 3, 3, 3});
  const std::string operands = ": x (1, 3, 4, 4) f32 on cpu, weight (2, 3, 3, 3) f32 on cpu";
  EXPECT_EQ(error_of<ShapeError>([&] { conv2d(x, w, {}, {.groups = 2}); }),
            "[conv2d] needs x (N, C, H, W), weight (O, C / groups, KH, KW) and bias (O), both in 2 groups" + operands);
  EXPECT_EQ(error_of<ShapeError>([&] { conv2d(x, w, {}, {.dilation = 2}); }),
            "[conv2d] a window over 5 elements does not fit into 4" + operands);
  EXPECT_EQ(error_of<ValueError>([&] { conv2d(x, w, {}, {.stride = 0}); }),
            "[conv2d] a size, stride or dilation is below 1, or a padding negative" + operands);
  EXPECT_EQ(error_of<ValueError>([&] {
              conv2d(x, w, {}, {.padding = {1, 1, 1}});
            }),
            "[conv2d] a size, stride, padding or dilation is not one number or two" + operands);
  EXPECT_EQ(error_of<ShapeError>([&] { conv2d(x, w, ones(3)); }),
            "[conv2d] needs x (N, C, H, W), weight (O, C / groups, KH, KW) and bias (O)" + operands +
                ", bias (3,) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { conv1d(x, w); }),
            "[conv1d] needs x (N, C, L), weight (O, C / groups, K) and bias (O)" + operands);
  EXPECT_EQ(
      error_of<ValueError>([] {
        conv1d(ones({1, 1, 4}), ones({1, 1, 2}), {}, {.stride = {1, 2}});
      }),
      "[conv1d] a size, stride, padding or dilation is not one number: x (1, 1, 4) f32 on cpu, weight (1, 1, 2) f32 "
      "on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { conv2d(x, to(w, DType::f64)); }),
            "[conv2d] operands differ in dtype: x (1, 3, 4, 4) f32 on cpu, weight (2, 3, 3, 3) f64 on cpu");
  for (const std::int64_t padding : {INT64_MAX, INT64_MAX / 2, std::int64_t{1} << 62})
    EXPECT_EQ(
        error_of<ShapeError>([&] { conv2d(x, w, {}, {.padding = padding}); }),
        "[conv2d] a padding of " + std::to_string(padding) + " makes a dimension of more than 2^63 - 1" + operands);
  EXPECT_EQ(error_of<ShapeError>([&] { conv2d(x, w, {}, {.dilation = INT64_MAX}); }),
            "[conv2d] a window over 9223372036854775807 elements does not fit into 4" + operands);
  EXPECT_EQ(conv2d(x, w).shape(), (Shape{1, 2, 2, 2})) << "the next call works";
}

TEST(Pooling, TakesTheLargestOrTheMeanOfEachWindow) {
  const Tensor x = reshape(arange(0.0, 20.0, 1.0, exact), {1, 1, 4, 5});
  EXPECT_EQ(max_pool2d(x, 2).to_vector<double>(), (std::vector<double>{6, 8, 16, 18}));
  EXPECT_EQ(avg_pool2d(x, {4, 2}, {1, 3}).to_vector<double>(), (std::vector<double>{8, 11}));
  EXPECT_EQ(avg_pool2d(x, 2, 4, 1).to_vector<double>(), (std::vector<double>{0, 1.75, 3.75, 18.5 / 2}))
      << "zeros of the padding count";
  EXPECT_EQ(max_pool2d(-1.0 - x, 2, 4, 1).to_vector<double>(), (std::vector<double>{-1, -4, -16, -19}))
      << "the padding is below all";
  const Tensor line = x[{0, slice(), slice(0, 2)}];
  EXPECT_EQ(max_pool1d(line, 3, 2).to_vector<double>(), (std::vector<double>{2, 4, 7, 9}));
  EXPECT_EQ(avg_pool1d(line, 2).to_vector<double>(), (std::vector<double>{0.5, 2.5, 5.5, 7.5}));
}

TEST(Pooling, NamesTheMismatchInErrors) {
  const Tensor x = ones({1, 2, 3});
  EXPECT_EQ(error_of<ShapeError>([&] { max_pool2d(x, 2); }),
            "[max_pool2d] needs x (N, C, H, W): x (1, 2, 3) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { max_pool1d(x, 4); }),
            "[max_pool1d] a window over 4 elements does not fit into 3: x (1, 2, 3) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { max_pool1d(x, 2, 1, INT64_MAX); }),
            "[max_pool1d] a padding of 9223372036854775807 makes a dimension of more than 2^63 - 1: x (1, 2, 3) f32 on "
            "cpu");
  EXPECT_EQ(error_of<ValueError>([&] { avg_pool1d(x, 2, 1, 2); }),
            "[avg_pool1d] the padding is more than half of the window: x (1, 2, 3) f32 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] {
              avg_pool1d(x, {1, 2});
            }),
            "[avg_pool1d] a size, stride, padding or dilation is not one number: x (1, 2, 3) f32 on cpu");
}

}  // namespace
}  // namespace poolgrad
