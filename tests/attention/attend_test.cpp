// attend() against the definition evaluated pair by pair, its gradients, its memory and its errors.
#include "attention/attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "allocator/caching_allocator.h"
#include "attention/definition.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "kernels/parallel.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using testing_support::error_of;

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, width, value_width;
};

struct Inputs {
  Tensor q, k, v;
};

Inputs make_inputs(const Sizes& s, DType dtype = DType::f64, std::uint64_t seed = 11) {
  Generator generator(seed);
  const TensorOptions options{.dtype = dtype};
  return {randn({s.batch, s.queries, s.heads, s.width}, options, generator),
          randn({s.batch, s.keys, s.kv_heads, s.width}, options, generator),
          randn({s.batch, s.keys, s.kv_heads, s.value_width}, options, generator)};
}

/// docs/attention.md, one pair at a time, in f64.
struct Reference {
  std::vector<double> out, lse;
};
Reference by_pairs(const Inputs& in, const Pattern& pattern, double scale, Alignment alignment) {
  const auto q = in.q.to_vector<double>(), k = in.k.to_vector<double>(), v = in.v.to_vector<double>();
  const std::int64_t batch = in.q.size(0), nq = in.q.size(1), hq = in.q.size(2), d = in.q.size(3);
  const std::int64_t nk = in.k.size(1), hk = in.k.size(2), dv = in.v.size(3);
  const auto at = [](const std::vector<double>& x, std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
  Reference result{std::vector<double>(static_cast<std::size_t>(batch * nq * hq * dv)),
                   std::vector<double>(static_cast<std::size_t>(batch * hq * nq))};
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < hq; ++h)
      for (std::int64_t i = 0; i < nq; ++i) {
        const std::int64_t g = h / (hq / hk), position = i + (alignment == Alignment::bottom_right ? nk - nq : 0);
        double z = 0;
        std::vector<double> sum(static_cast<std::size_t>(dv));
        for (std::int64_t j = 0; j < nk; ++j) {
          double s = 0;
          for (std::int64_t c = 0; c < d; ++c)
            s += at(q, ((b * nq + i) * hq + h) * d + c) * at(k, ((b * nk + j) * hk + g) * d + c);
          const double weight = static_cast<double>(pattern.multiplicity(position, j)) * std::exp(scale * s);
          z += weight;
          for (std::int64_t c = 0; c < dv; ++c)
            sum[static_cast<std::size_t>(c)] += weight * at(v, ((b * nk + j) * hk + g) * dv + c);
        }
        result.lse[static_cast<std::size_t>((b * hq + h) * nq + i)] = std::log(z);
        for (std::int64_t c = 0; c < dv; ++c)
          result.out[static_cast<std::size_t>(((b * nq + i) * hq + h) * dv + c)] =
              z > 0 ? sum[static_cast<std::size_t>(c)] / z : 0;
      }
  return result;
}

const std::vector<Sizes> all_sizes{{1, 1, 1, 1, 1, 1, 1},  {2, 7, 7, 4, 2, 8, 8},      {1, 5, 13, 3, 1, 6, 10},
                                   {2, 13, 5, 2, 2, 4, 3}, {1, 67, 131, 2, 1, 16, 16}, {1, 3, 0, 2, 1, 4, 4},
                                   {0, 3, 3, 2, 1, 4, 4},  {2, 0, 5, 2, 2, 4, 4}};
const std::vector<Pattern> all_patterns{Pattern::dense(), Pattern::causal(), Pattern::window(1, 0),
                                        Pattern::window(2, 1), Pattern::causal() & Pattern::window(40, 40)};

TEST(Attend, FollowsTheDefinitionPairByPair) {
  for (const Sizes& s : all_sizes)
    for (const Pattern& pattern : all_patterns)
      for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
        const Inputs in = make_inputs(s);
        const double scale = 0.37;
        const Attended got = attend(in.q, in.k, in.v, pattern, {.scale = scale, .alignment = alignment});
        const Reference want = by_pairs(in, pattern, scale, alignment);
        EXPECT_TRUE(all_close(got.out, from_data(want.out, got.out.shape()), 1e-11, 1e-12)) << pattern.to_string();
        EXPECT_TRUE(all_close(got.lse, from_data(want.lse, got.lse.shape()), 1e-11, 1e-12)) << pattern.to_string();
      }
}

TEST(Attend, ScalesByTheRootOfTheWidthUnlessTold) {
  const Inputs in = make_inputs({1, 4, 4, 1, 1, 16, 2});
  const Tensor expected = attend(in.q, in.k, in.v, Pattern::dense(), {.scale = 0.25}).out;
  EXPECT_TRUE(bit_equal(attend(in.q, in.k, in.v).out, expected));
}

TEST(Attend, WorksInEveryFloatingDtype) {
  const Sizes s{2, 33, 70, 4, 2, 16, 16};
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-5}, {DType::f16, 4e-3}, {DType::bf16, 3e-2}}) {
    const Inputs in = make_inputs(s, dtype);
    const Attended got = attend(in.q, in.k, in.v, Pattern::causal());
    EXPECT_EQ(got.out.dtype(), dtype);
    EXPECT_EQ(got.lse.dtype(), DType::f32);
    const Reference want = by_pairs(in, Pattern::causal(), 0.25, Alignment::bottom_right);
    EXPECT_TRUE(all_close(got.out, from_data(want.out, got.out.shape()), tolerance, tolerance)) << to_string(dtype);
  }
}

TEST(Attend, AQueryWithoutKeysGivesZeroAndTakesNoGradient) {
  Inputs in = make_inputs({1, 6, 3, 2, 1, 4, 4});  // bottom right: the first three queries come before every key
  for (Tensor* x : {&in.q, &in.k, &in.v}) x->set_requires_grad();
  const Attended got = attend(in.q, in.k, in.v, Pattern::causal());
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(bit_equal(select(got.out, 1, i).detach().copy(), zeros({1, 2, 4}, {.dtype = DType::f64})));
    EXPECT_EQ(slice(select(got.lse, 2, i), 1, 0, 1).item(), -std::numeric_limits<double>::infinity());
  }
  (sum(got.out) + sum(slice(got.lse, 2, 3))).backward();
  for (const Tensor& x : {in.q, in.k, in.v}) EXPECT_FALSE(any(is_nan(x.grad())).item());
  EXPECT_EQ(norm(slice(in.q.grad(), 1, 0, 3)).item(), 0.0);
  EXPECT_GT(norm(slice(in.q.grad(), 1, 3)).item(), 0.0);
}

TEST(Attend, TakesSlicesOfAPackedProjectionAndAnyLayout) {
  Generator generator(4);
  const Tensor packed = randn({2, 9, 8, 6}, {.dtype = DType::f64}, generator);
  const Tensor q = slice(packed, 2, 0, 4), k = slice(packed, 2, 4, 6), v = slice(packed, 2, 6, 8);
  const Attended expected = attend(contiguous(q), contiguous(k), contiguous(v), Pattern::causal());
  EXPECT_TRUE(bit_equal(attend(q, k, v, Pattern::causal()).out, expected.out));
  const auto inside_out = [](const Tensor& x) { return permute(contiguous(permute(x, {3, 2, 1, 0})), {3, 2, 1, 0}); };
  const Tensor odd = inside_out(q);
  ASSERT_NE(odd.strides().back(), 1);
  EXPECT_TRUE(bit_equal(attend(odd, inside_out(k), inside_out(v), Pattern::causal()).out, expected.out));
}

TEST(Attend, PassesGradcheckForBothResults) {
  for (const Sizes& s : {Sizes{1, 3, 3, 2, 1, 2, 3}, Sizes{1, 2, 4, 1, 1, 2, 2}})
    for (const Pattern& pattern : all_patterns) {
      const Inputs in = make_inputs(s);
      std::vector<Tensor> inputs{in.q, in.k, in.v};
      for (Tensor& x : inputs) x.set_requires_grad();
      const TensorFunction function = [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
        const auto [out, lse] = attend(x[0], x[1], x[2], pattern);
        return {out, lse};
      };
      const GradcheckReport first = gradcheck(function, inputs), second = gradgradcheck(function, inputs);
      EXPECT_TRUE(first) << pattern.to_string() << "\n" << first.text;
      EXPECT_TRUE(second) << pattern.to_string() << "\n" << second.text;
    }
}

TEST(Attend, DifferentiatesTheLogSumExpAlone) {
  Inputs in = make_inputs({1, 4, 4, 1, 1, 3, 3}), same = make_inputs({1, 4, 4, 1, 1, 3, 3});
  for (Tensor* x : {&in.q, &in.k, &in.v, &same.q, &same.k}) x->set_requires_grad();
  sum(attend(in.q, in.k, in.v, Pattern::causal()).lse).backward();
  sum(attend_by_definition(same.q, same.k, same.v, Pattern::causal(), 1 / std::sqrt(3.0), Alignment::bottom_right).lse)
      .backward();
  EXPECT_TRUE(all_close(in.q.grad(), same.q.grad(), 1e-12, 1e-13));
  EXPECT_TRUE(all_close(in.k.grad(), same.k.grad(), 1e-12, 1e-13));
  EXPECT_EQ(norm(in.v.grad()).item(), 0.0);
}

TEST(Attend, GivesEqualBitsForAnyNumberOfThreads) {
  const int before = kernels::num_threads();
  std::vector<Tensor> results[2];
  for (const int threads : {1, 2}) {
    kernels::set_num_threads(threads);
    Inputs in = make_inputs({2, 150, 150, 4, 2, 16, 16}, DType::f32);
    for (Tensor* x : {&in.q, &in.k, &in.v}) x->set_requires_grad();
    const Attended got = attend(in.q, in.k, in.v, Pattern::window(64, 0));
    sum(square(got.out)).backward();
    results[threads - 1] = {got.out.detach(), got.lse.detach(), in.q.grad(), in.k.grad(), in.v.grad()};
  }
  kernels::set_num_threads(before);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(bit_equal(results[0][i], results[1][i])) << i;
}

TEST(Attend, NeverHoldsScoresOrWeights) {
  CachingAllocator& pool = allocator_for(cpu);
  const std::int64_t length = 2048, width = 32;
  Inputs in = make_inputs({1, length, length, 2, 2, width, width}, DType::f32);
  for (Tensor* x : {&in.q, &in.k, &in.v}) x->set_requires_grad();
  pool.reset_peaks();
  const auto before = pool.statistics().requested_bytes.current;
  attend(in.q, in.k, in.v, Pattern::causal()).out.backward(ones({1, length, 2, width}));
  const Statistics after = pool.statistics();
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::scores)].peak, 0u);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::weights)].peak, 0u);
  const std::uint64_t tensor = static_cast<std::uint64_t>(length * 2 * width) * sizeof(float);
  EXPECT_LT(after.requested_bytes.peak - before, 7 * tensor) << "one T x T matrix is 128 tensors";
}

TEST(Attend, RequestsTheSameMemoryOnASimulatedDevice) {
  const Device sim{DeviceType::sim, 0};
  std::uint64_t hashes[2];
  for (const Device device : {cpu, sim}) {
    CachingAllocator& pool = allocator_for(device);
    pool.reset_sequence_hash();
    {
      const Tensor q = zeros({2, 65, 4, 8}, {.device = device}).set_requires_grad();
      const Tensor k = zeros({2, 65, 2, 8}, {.device = device}).set_requires_grad();
      sum(attend(q, k, k, Pattern::causal()).out).backward();
      EXPECT_EQ(q.grad().shape(), q.shape());
    }
    hashes[device.is_sim()] = pool.sequence_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(Attend, RefusesOperandsThatDoNotFitAndShowsAllOfThem) {
  const auto refusal = [](const Shape& q, const Shape& k, const Shape& v) {
    return error_of<ShapeError>([&] { attend(zeros(q), zeros(k), zeros(v)); });
  };
  EXPECT_EQ(refusal({1, 4, 3, 8}, {1, 4, 2, 8}, {1, 4, 2, 8}),
            "[attend] the heads of q are not a multiple of those of k: q (1, 4, 3, 8) f32 on cpu, k (1, 4, 2, 8) f32 "
            "on cpu, v (1, 4, 2, 8) f32 on cpu");
  EXPECT_THAT(refusal({4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8}), ::testing::HasSubstr("q, k and v must be (B, N, H, D)"));
  EXPECT_THAT(refusal({2, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 2, 8}), ::testing::HasSubstr("batch sizes differ"));
  EXPECT_THAT(refusal({1, 4, 2, 8}, {1, 4, 2, 8}, {1, 5, 2, 8}), ::testing::HasSubstr("k and v differ in length"));
  EXPECT_THAT(refusal({1, 4, 2, 8}, {1, 4, 2, 8}, {1, 4, 1, 8}), ::testing::HasSubstr("k and v differ in heads"));
  EXPECT_THAT(refusal({1, 4, 2, 8}, {1, 4, 2, 6}, {1, 4, 2, 8}), ::testing::HasSubstr("differ in width per head"));
  const Tensor x = zeros({1, 4, 2, 8});
  EXPECT_THROW(attend(x, x, zeros({1, 4, 2, 8}, {.dtype = DType::f64})), DTypeError);
  EXPECT_THROW(attend(to(x, DType::i64), to(x, DType::i64), to(x, DType::i64)), DTypeError);
  EXPECT_THROW(attend(x, to(x, Device{DeviceType::sim, 0}), x), DeviceError);
  EXPECT_THROW(attend(x, {}, x), ValueError);
  EXPECT_THROW(attend(x, x, x, Pattern::dense(), {.scale = std::nan("")}), ValueError);
}

}  // namespace
}  // namespace poolgrad::attention
