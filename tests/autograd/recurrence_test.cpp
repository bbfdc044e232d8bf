// The gated delta rule compared with its definition, position by position in f64, and the short convolution with
// loops.
#include "autograd/recurrence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"
#include "tests/threads.h"

namespace poolgrad {
namespace {

using testing_support::error_of;
constexpr double infinite = std::numeric_limits<double>::infinity();

struct Operands {
  Tensor q, k, v, beta, gate, state;

  std::vector<Tensor> all() const { return {q, k, v, beta, gate, state}; }
  RecurrentResult run(const DeltaRuleOptions& options) const {
    return gated_delta_rule(q, k, v, beta, gate, state, options);
  }
  /// In another dtype, as leaves.
  Operands as(DType dtype) const {
    const auto leaf = [](const Tensor& x, DType wanted) { return to(x.detach(), wanted).copy().set_requires_grad(); };
    const DType wide = compute_dtype(dtype);
    return {leaf(q, dtype), leaf(k, dtype), leaf(v, dtype), leaf(beta, wide), leaf(gate, wide), leaf(state, wide)};
  }
};

/// Keys of length 1, beta within (0, 1), decays within (0.3, 1); every seventh gate forgets and every fifth keeps.
Operands drawn(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t k, std::int64_t v,
               Generator& generator) {
  const TensorOptions exact{.dtype = DType::f64};
  const Shape numbers{batch, length, heads};
  Tensor keys = randn({batch, length, heads, k}, exact, generator);
  keys = keys / norm(keys, 2.0, {-1}, Keep(true));
  std::vector<double> gates = (randn(numbers, exact, generator) * 0.3).to_vector<double>();
  for (std::size_t i = 0; i < gates.size(); ++i)
    gates[i] = i % 7 == 3 ? -infinite : i % 5 == 2 ? 0.0 : -std::abs(gates[i]);
  std::vector<double> betas = sigmoid(randn(numbers, exact, generator)).to_vector<double>();
  for (std::size_t i = 4; i < betas.size(); i += 11) betas[i] = 0.0;
  return {randn({batch, length, heads, k}, exact, generator),
          keys,
          randn({batch, length, heads, v}, exact, generator),
          from_data(betas, numbers),
          from_data(gates, numbers),
          randn({batch, heads, k, v}, exact, generator)};
}

/// The definition in plain loops.
RecurrentResult by_loops(const Operands& x, bool delta) {
  const std::int64_t batch = x.q.size(0), length = x.q.size(1), heads = x.q.size(2), k = x.q.size(3), v = x.v.size(3);
  const auto numbers = [](const Tensor& t) { return to(t.detach(), DType::f64).to_vector<double>(); };
  const std::vector<double> qs = numbers(x.q), ks = numbers(x.k), vs = numbers(x.v), betas = numbers(x.beta),
                            gates = numbers(x.gate);
  std::vector<double> state = numbers(x.state), out(vs.size());
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t row = (b * length + t) * heads + h;
        double* const s = state.data() + (b * heads + h) * k * v;
        for (std::int64_t i = 0; i < k * v; ++i) s[i] *= std::exp(gates[at(row)]);
        for (std::int64_t j = 0; j < v; ++j) {
          double read = 0;
          for (std::int64_t i = 0; i < k && delta; ++i) read += ks[at(row * k + i)] * s[i * v + j];
          const double u = betas[at(row)] * (vs[at(row * v + j)] - read);
          for (std::int64_t i = 0; i < k; ++i) {
            s[i * v + j] += ks[at(row * k + i)] * u;
            out[at(row * v + j)] += qs[at(row * k + i)] * s[i * v + j];
          }
        }
      }
  return {from_data(out, x.v.shape()), from_data(state, x.state.shape())};
}

/// The definition by differentiable operators, one position at a time.
RecurrentResult by_steps(const Operands& x, bool delta) {
  Tensor state = x.state;
  std::vector<Tensor> out;
  for (std::int64_t t = 0; t < x.q.size(1); ++t) {
    const Tensor k = unsqueeze(select(x.k, 1, t), -1);  // (B, H, K, 1)
    state = state * reshape(exp(select(x.gate, 1, t)), {x.q.size(0), x.q.size(2), 1, 1});
    Tensor u = unsqueeze(select(x.v, 1, t), -2);
    if (delta) u = u - matmul(transpose(k, -1, -2), state);
    state = state + matmul(k, u * reshape(select(x.beta, 1, t), {x.q.size(0), x.q.size(2), 1, 1}));
    out.push_back(squeeze(matmul(unsqueeze(select(x.q, 1, t), -2), state), -2));
  }
  return {stack(out, 1), state};
}

std::vector<Tensor> gradients(const RecurrentResult& result, const std::vector<Tensor>& inputs, std::uint64_t seed) {
  Generator generator(seed);
  const auto weight = [&](const Tensor& x) {
    return to(randn(x.shape(), {.dtype = DType::f64}, generator), x.dtype());
  };
  return grad({result.out, result.state}, inputs, {weight(result.out), weight(result.state)});
}

struct Case {
  std::int64_t batch, length, heads, k, v, chunk;
  std::string text() const {
    return "B " + std::to_string(batch) + " T " + std::to_string(length) + " H " + std::to_string(heads) + " K " +
           std::to_string(k) + " V " + std::to_string(v) + " chunk " + std::to_string(chunk);
  }
};
constexpr Case cases[] = {{2, 37, 3, 8, 5, 16},  {1, 1, 2, 4, 4, 64},   {1, 130, 1, 16, 24, 64}, {2, 33, 2, 3, 7, 8},
                          {1, 20, 1, 40, 17, 1}, {1, 48, 2, 16, 1, 16}, {3, 9, 1, 1, 9, 100}};

TEST(GatedDeltaRule, IsItsDefinitionPositionByPosition) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  for (const Case& c : cases)
    for (const bool delta : {true, false}) {
      const Operands x = drawn(c.batch, c.length, c.heads, c.k, c.v, generator);
      const RecurrentResult expected = by_loops(x, delta), got = x.run({.delta = delta, .chunk = c.chunk});
      EXPECT_TRUE(allclose(got.out, expected.out, 1e-12, 1e-12)) << c.text() << " delta " << delta << " seed " << seed;
      EXPECT_TRUE(allclose(got.state, expected.state, 1e-12, 1e-12)) << c.text() << " seed " << seed;
    }
}

TEST(GatedDeltaRule, HasTheGradientsOfItsDefinition) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const char* const names[] = {"q", "k", "v", "beta", "gate", "state"};
  for (const Case& c : cases)
    for (const bool delta : {true, false}) {
      const Operands x = drawn(c.batch, c.length, c.heads, c.k, c.v, generator).as(DType::f64);
      const std::vector<Tensor> expected = gradients(by_steps(x, delta), x.all(), seed),
                                got = gradients(x.run({.delta = delta, .chunk = c.chunk}), x.all(), seed);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(allclose(got[i], expected[i], 1e-12, 1e-12))
            << names[i] << ": " << c.text() << " delta " << delta << " seed " << seed;
    }
}

TEST(GatedDeltaRule, PassesGradcheckAndASecondDerivative) {
  Generator generator(test_seed());
  for (const bool delta : {true, false}) {
    Operands x = drawn(1, 7, 2, 3, 2, generator);
    x.gate = clamp(x.gate, -2.0, -0.125);  // a difference has no room at -infinity and may not cross 0
    x = x.as(DType::f64);
    const auto function = [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const RecurrentResult result =
          gated_delta_rule(in[0], in[1], in[2], in[3], in[4], in[5], {.delta = delta, .chunk = 3});
      return {result.out, result.state};
    };
    EXPECT_TRUE(gradcheck(function, x.all()));
    EXPECT_TRUE(gradgradcheck(function, x.all()));
  }
}

TEST(GatedDeltaRule, ComputesHalfTypesInF32) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const Operands exact = drawn(2, 150, 2, 16, 24, generator);
  for (const auto& [dtype, unit] : {std::pair{DType::f32, 0x1p-24}, {DType::f16, 0x1p-11}, {DType::bf16, 0x1p-8}}) {
    const Operands x = exact.as(dtype), wide = x.as(DType::f64);
    const RecurrentResult got = x.run({}), expected = by_loops(x, true);
    EXPECT_EQ(got.out.dtype(), dtype);
    EXPECT_EQ(got.state.dtype(), DType::f32);
    EXPECT_TRUE(allclose(to(got.out, DType::f64), expected.out, unit, 2e-5)) << to_string(dtype) << " seed " << seed;
    EXPECT_TRUE(allclose(to(got.state, DType::f64), expected.state, 1e-5, 1e-5)) << to_string(dtype);
    const std::vector<Tensor> by_kernel = gradients(got, x.all(), seed),
                              by_definition = gradients(by_steps(wide, true), wide.all(), seed);
    for (std::size_t i = 0; i < by_kernel.size(); ++i)
      EXPECT_TRUE(allclose(to(by_kernel[i], DType::f64), by_definition[i], 4 * unit, 64 * unit + 1e-4))
          << i << " " << to_string(dtype) << " seed " << seed;
  }
}

TEST(GatedDeltaRule, ContinuesFromTheStateOfAnyPrefix) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const Operands x = drawn(2, 50, 2, 8, 8, generator);
  const RecurrentResult whole = x.run({.chunk = 16});
  for (const std::int64_t cut : {1, 15, 16, 33, 49}) {
    const auto part = [&](std::int64_t begin, std::int64_t end, const Tensor& state) {
      return gated_delta_rule(slice(x.q, 1, begin, end), slice(x.k, 1, begin, end), slice(x.v, 1, begin, end),
                              slice(x.beta, 1, begin, end), slice(x.gate, 1, begin, end), state, {.chunk = 16});
    };
    const RecurrentResult first = part(0, cut, x.state), second = part(cut, 50, first.state);
    EXPECT_TRUE(allclose(cat({first.out, second.out}, 1), whole.out, 1e-12, 1e-12)) << cut << " seed " << seed;
    EXPECT_TRUE(allclose(second.state, whole.state, 1e-12, 1e-12)) << cut << " seed " << seed;
  }
}

TEST(GatedDeltaRule, ReturnsItsStateWithoutPositions) {
  Generator generator(test_seed());
  const Operands x = drawn(2, 0, 2, 3, 4, generator).as(DType::f64);
  const RecurrentResult result = x.run({});
  EXPECT_EQ(result.out.shape(), (Shape{2, 0, 2, 4}));
  EXPECT_TRUE(bit_equal(result.state, x.state));
  sum(result.state * 3.0).backward();
  EXPECT_TRUE(bit_equal(x.state.grad(), full(x.state.shape(), 3.0, {.dtype = DType::f64})));
}

TEST(GatedDeltaRule, WithoutAStateStartsFromZero) {
  Generator generator(test_seed());
  Operands x = drawn(1, 20, 2, 4, 4, generator);
  const RecurrentResult without = gated_delta_rule(x.q, x.k, x.v, x.beta, x.gate);
  x.state = zeros_like(x.state);
  EXPECT_TRUE(bit_equal(without.out, x.run({}).out));
}

TEST(GatedDeltaRule, ReadsOperandsOfAnyLayout) {
  Generator generator(test_seed());
  const Operands x = drawn(2, 21, 3, 4, 5, generator).as(DType::f64);
  const auto turned = [](const Tensor& t) { return transpose(clone(transpose(t, 1, -1)), 1, -1); };
  const Operands y{turned(x.q), turned(x.k), turned(x.v), turned(x.beta), turned(x.gate), turned(x.state)};
  ASSERT_FALSE(y.q.is_contiguous());
  const RecurrentResult plain = x.run({.chunk = 8}), other = y.run({.chunk = 8});
  EXPECT_TRUE(bit_equal(other.out, plain.out));
  EXPECT_TRUE(bit_equal(other.state, plain.state));
  const std::vector<Tensor> of_plain = gradients(plain, x.all(), 5),
                            of_other = gradients({turned(other.out), turned(other.state)}, x.all(), 5);
  for (std::size_t i = 0; i < of_plain.size(); ++i) EXPECT_TRUE(bit_equal(of_plain[i], of_other[i])) << i;
}

TEST(GatedDeltaRule, HasEqualBitsForAnyNumberOfThreads) {
  Generator generator(test_seed());
  const Operands x = drawn(2, 100, 3, 16, 16, generator).as(DType::f32);
  const auto run = [&](int threads) {
    const Threads guard(threads);
    const RecurrentResult result = x.run({.chunk = 32});
    std::vector<Tensor> all = gradients(result, x.all(), 1);
    all.insert(all.end(), {result.out, result.state});
    return all;
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 5}) {
    const std::vector<Tensor> more = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(bit_equal(one[i], more[i])) << threads << " " << i;
  }
}

TEST(GatedDeltaRule, KeepsOnlyItsOperandsForTheBackwardPass) {
  Generator generator(test_seed());
  const Operands x = drawn(1, 256, 2, 16, 16, generator).as(DType::f32);
  const auto live = [] { return static_cast<std::int64_t>(allocator_for(cpu).statistics().requested_bytes.current); };
  const auto before = live();
  const RecurrentResult result = x.run({});
  EXPECT_EQ(live() - before, result.out.numel() * 4 + result.state.numel() * 4);
}

TEST(GatedDeltaRule, RefusesBadArgumentsInOneSentence) {
  const Tensor x = ones({1, 4, 2, 3}), numbers = ones({1, 4, 2});
  EXPECT_THAT(
      error_of<ShapeError>([&] {
        gated_delta_rule(x, ones({1, 4, 2, 5}), x, numbers, numbers);
      }),
      ::testing::StartsWith("[gated_delta_rule] needs q and k (B, T, H, K) and v (B, T, H, V): q (1, 4, 2, 3)"));
  EXPECT_THAT(error_of<ShapeError>([&] {
                gated_delta_rule(x, x, x, ones({4, 2}), numbers);
              }),
              ::testing::StartsWith("[gated_delta_rule] needs beta and gate (B, T, H)"));
  EXPECT_THAT(error_of<ShapeError>([&] {
                gated_delta_rule(x, x, x, numbers, numbers, ones({1, 2, 3, 4}));
              }),
              ::testing::StartsWith("[gated_delta_rule] needs a state (B, H, K, V)"));
  const Tensor half = to(x, DType::bf16);
  EXPECT_THAT(error_of<DTypeError>([&] { gated_delta_rule(half, half, half, to(numbers, DType::bf16), numbers); }),
              ::testing::HasSubstr("needs beta, gate and state in the compute dtype of q"));
  EXPECT_THAT(error_of<ValueError>([&] { gated_delta_rule(x, x, x, numbers, numbers, {}, {.chunk = 0}); }),
              ::testing::HasSubstr("a chunk has less than one position"));
}

/// The convolution by slices of the padded input.
Tensor by_slices(const Tensor& x, const Tensor& weight, const Tensor& before) {
  const std::int64_t taps = weight.size(1);
  const Tensor whole = before.defined() ? cat({before, x}, 1) : pad(x, 1, taps - 1, 0);
  Tensor out = zeros_like(x);
  for (std::int64_t i = 0; i < taps; ++i) out = out + slice(whole, 1, i, i + x.size(1)) * select(weight, 1, i);
  return out;
}

TEST(ShortConvolution, IsTheSumOfPlainLoops) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const TensorOptions exact{.dtype = DType::f64};
  for (const std::int64_t channels : {0, 3, 37})
    for (const std::int64_t length : {0, 1, 3, 10, 70}) {
      const Tensor x = randn({2, length, channels}, exact, generator), w = randn({channels, 4}, exact, generator);
      std::vector<double> sums;
      const std::vector<double> in = x.to_vector<double>(), weights = w.to_vector<double>();
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t t = 0; t < length; ++t)
          for (std::int64_t c = 0; c < channels; ++c) {
            double total = 0;
            for (std::int64_t i = std::max<std::int64_t>(0, 3 - t); i < 4; ++i)
              total += weights[static_cast<std::size_t>(c * 4 + i)] *
                       in[static_cast<std::size_t>((b * length + t - 3 + i) * channels + c)];
            sums.push_back(total);
          }
      EXPECT_TRUE(allclose(short_convolution(x, w), from_data(sums, {2, length, channels}), 1e-14, 1e-14))
          << channels << " channels, length " << length << ", seed " << seed;
    }
}

TEST(ShortConvolution, HasTheGradientsOfItsDefinition) {
  const std::uint64_t seed = test_seed();
  Generator generator(seed);
  const auto leaf = [&](const Shape& shape) {
    return randn(shape, {.dtype = DType::f64}, generator).set_requires_grad();
  };
  for (const std::int64_t taps : {1, 2, 4, 7})
    for (const std::int64_t length : {0, 2, 5, 70})
      for (const bool continued : {false, true}) {
        const Tensor x = leaf({3, length, 19}), w = leaf({19, taps});
        const Tensor before = continued ? leaf({3, taps - 1, 19}) : Tensor();
        const Tensor grad_out = randn(x.shape(), {.dtype = DType::f64}, generator);
        std::vector<Tensor> leaves{x, w};
        if (continued) leaves.push_back(before);
        const std::vector<Tensor> got = grad({short_convolution(x, w, before)}, leaves, {grad_out}),
                                  expected = grad({by_slices(x, w, before)}, leaves, {grad_out});
        for (std::size_t i = 0; i < leaves.size(); ++i)
          EXPECT_TRUE(allclose(got[i], expected[i], 1e-12, 1e-12))
              << "gradient " << i << ", " << taps << " taps, length " << length << ", seed " << seed;
      }
}

TEST(ShortConvolution, RoundsHalfTypesOnce) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto leaf = [&](const Shape& shape) {
      return to(randn(shape, {}, generator), dtype).detach().set_requires_grad();
    };
    const auto wide = [](const Tensor& of) { return to(of.detach(), DType::f32).set_requires_grad(); };
    const Tensor x = leaf({2, 40, 21}), w = leaf({21, 4}), before = leaf({2, 3, 21}), grad_out = leaf({2, 40, 21});
    const Tensor wide_x = wide(x), wide_w = wide(w), wide_before = wide(before);
    const Tensor out = short_convolution(x, w, before), expected = short_convolution(wide_x, wide_w, wide_before);
    EXPECT_TRUE(bit_equal(out, to(expected, dtype))) << to_string(dtype);
    const std::vector<Tensor> got = grad({out}, {x, w, before}, {grad_out}),
                              of_wide = grad({expected}, {wide_x, wide_w, wide_before}, {to(grad_out, DType::f32)});
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(bit_equal(got[i], to(of_wide[i], dtype))) << "gradient " << i << " " << to_string(dtype);
  }
}

TEST(ShortConvolution, ReadsOperandsOfAnyLayout) {
  Generator generator(test_seed());
  const auto leaf = [&](const Shape& shape) { return randn(shape, {}, generator).set_requires_grad(); };
  const Tensor x = leaf({2, 9, 5}), w = leaf({5, 4}), before = leaf({2, 3, 5}), grad_out = leaf({2, 9, 5});
  const auto turned = [](const Tensor& t) { return transpose(clone(transpose(t, 0, -1)), 0, -1); };
  const Tensor plain = short_convolution(x, w, before), other = short_convolution(turned(x), turned(w), turned(before));
  EXPECT_TRUE(bit_equal(other, plain));
  const std::vector<Tensor> of_plain = grad({plain}, {x, w, before}, {grad_out}),
                            of_other = grad({other}, {x, w, before}, {turned(grad_out.detach())});
  for (std::size_t i = 0; i < of_plain.size(); ++i) EXPECT_TRUE(bit_equal(of_plain[i], of_other[i])) << i;
}

TEST(ShortConvolution, HasEqualBitsForAnyNumberOfThreads) {
  Generator generator(test_seed());
  const auto leaf = [&](const Shape& shape) { return randn(shape, {}, generator).set_requires_grad(); };
  const Tensor x = leaf({2, 300, 21}), w = leaf({21, 4}), before = leaf({2, 3, 21});
  const Tensor grad_out = randn({2, 300, 21}, {}, generator);
  const auto run = [&](int threads) {
    const Threads guard(threads);
    const Tensor out = short_convolution(x, w, before);
    std::vector<Tensor> all = grad({out}, {x, w, before}, {grad_out});
    all.push_back(out);
    return all;
  };
  const std::vector<Tensor> one = run(1);
  for (const int threads : {2, 5}) {
    const std::vector<Tensor> more = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(bit_equal(one[i], more[i])) << threads << " " << i;
  }
}

TEST(ShortConvolution, KeepsOnlyItsOperandsForTheBackwardPass) {
  Generator generator(test_seed());
  const Tensor x = randn({1, 256, 32}, {}, generator).set_requires_grad(),
               w = randn({32, 4}, {}, generator).set_requires_grad();
  const auto live = [] { return static_cast<std::int64_t>(allocator_for(cpu).statistics().requested_bytes.current); };
  const auto before = live();
  const Tensor out = short_convolution(x, w);
  EXPECT_EQ(live() - before, out.numel() * 4);
}

TEST(ShortConvolution, ContinuesFromTheInputsBefore) {
  Generator generator(test_seed());
  const Tensor x = randn({2, 9, 3}, {}, generator), w = randn({3, 4}, {}, generator);
  const Tensor whole = short_convolution(x, w);
  for (std::int64_t cut = 3; cut <= 9; ++cut)
    EXPECT_TRUE(bit_equal(short_convolution(slice(x, 1, cut), w, slice(x, 1, cut - 3, cut)), slice(whole, 1, cut)));
}

TEST(ShortConvolution, PassesGradcheck) {
  Generator generator(test_seed());
  const auto leaf = [&](const Shape& shape) {
    return randn(shape, {.dtype = DType::f64}, generator).set_requires_grad();
  };
  const auto function = [](const Tensor& x, const Tensor& w, const Tensor& before) {
    return short_convolution(x, w, before);
  };
  EXPECT_TRUE(gradcheck(function, leaf({2, 5, 3}), leaf({3, 4}), leaf({2, 3, 3})));
  EXPECT_TRUE(gradgradcheck(function, leaf({2, 5, 3}), leaf({3, 4}), leaf({2, 3, 3})));
}

TEST(ShortConvolution, RefusesBadArgumentsInOneSentence) {
  EXPECT_THAT(error_of<ShapeError>([&] {
                short_convolution(ones({1, 4, 2}), ones({3, 4}));
              }),
              ::testing::StartsWith("[short_convolution] needs x (B, T, C) and weight (C, N): x (1, 4, 2)"));
  EXPECT_THAT(error_of<ShapeError>([&] {
                short_convolution(ones({1, 4, 2}), ones({2, 4}), ones({1, 2, 2}));
              }),
              ::testing::StartsWith("[short_convolution] needs the N - 1 inputs before x (B, N - 1, C)"));
}

}  // namespace
}  // namespace poolgrad
