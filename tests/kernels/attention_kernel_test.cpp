// The fused kernels against the definition, evaluated pair by pair in f64.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/clock.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Shape {
  std::int64_t batch, queries, keys, q_heads, kv_heads, depth, v_depth;
};

/// Four indices into a row-major (B, N, H, D) buffer.
struct Array {
  std::int64_t batch = 0, n = 0, heads = 0, depth = 0;
  std::vector<double> data;
  Array(std::int64_t batch_, std::int64_t n_, std::int64_t heads_, std::int64_t depth_)

      : batch(batch_), n(n_), heads(heads_), depth(depth_), data(static_cast<std::size_t>(batch * n * heads * depth)) {}
  double& at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) {
    return data[static_cast<std::size_t>(((b * n + i) * heads + h) * depth + d)];
  }
};

struct Problem {
  Shape shape;
  BandSchedule schedule;
  double scale;
  Array q, k, v, out, grad_out, dq, dk, dv;
  std::vector<double> lse, grad_lse;  // (B, Hq, Nq)

  Problem(const Shape& s, const BandSchedule& pattern)
      : shape(s),
        schedule(pattern),
        scale(1.0 / std::sqrt(static_cast<double>(s.depth))),
        q(s.batch, s.queries, s.q_heads, s.depth),
        k(s.batch, s.keys, s.kv_heads, s.depth),
        v(s.batch, s.keys, s.kv_heads, s.v_depth),
        out(s.batch, s.queries, s.q_heads, s.v_depth),
        grad_out(out),
        dq(q),
        dk(k),
        dv(v),
        lse(static_cast<std::size_t>(s.batch * s.q_heads * s.queries)),
        grad_lse(lse) {}

  std::size_t row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>((b * shape.q_heads + h) * shape.queries + i);
  }
  /// -left <= k_pos - q_pos <= right, in arithmetic that cannot overflow.
  bool admitted(std::int64_t i, std::int64_t j) const {
    const auto distance = static_cast<double>(j - i - schedule.q_offset);
    return -static_cast<double>(schedule.left) <= distance && distance <= static_cast<double>(schedule.right);
  }
};

/// Fills the operands with values that S holds exactly.
template <class S>
void randomize(Problem& p, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (auto* values : {&p.q.data, &p.k.data, &p.v.data, &p.grad_out.data, &p.grad_lse})
    for (double& x : *values) {
      if constexpr (std::is_same_v<S, double>)
        x = normal(random);
      else
        x = static_cast<double>(static_cast<float>(S(static_cast<float>(normal(random)))));
    }
}

/// The definition: softmax over the admitted keys, and its gradients.
void evaluate(Problem& p) {
  const Shape& s = p.shape;
  for (auto* gradient : {&p.dq, &p.dk, &p.dv}) std::fill(gradient->data.begin(), gradient->data.end(), 0.0);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.q_heads; ++h) {
      const std::int64_t g = h / (s.q_heads / s.kv_heads);
      for (std::int64_t i = 0; i < s.queries; ++i) {
        std::vector<double> weight(static_cast<std::size_t>(s.keys), -infinity);
        double maximum = -infinity, total = 0;
        for (std::int64_t j = 0; j < s.keys; ++j) {
          if (!p.admitted(i, j)) continue;
          double score = 0;
          for (std::int64_t d = 0; d < s.depth; ++d) score += p.q.at(b, i, h, d) * p.k.at(b, j, g, d);
          weight[static_cast<std::size_t>(j)] = score * p.scale;
          maximum = std::max(maximum, score * p.scale);
        }
        for (double& w : weight) total += w = maximum == -infinity ? 0.0 : std::exp(w - maximum);
        p.lse[p.row(b, h, i)] = maximum + std::log(total);
        double delta = -p.grad_lse[p.row(b, h, i)];
        for (std::int64_t d = 0; d < s.v_depth; ++d) {
          double sum = 0;
          for (std::int64_t j = 0; j < s.keys; ++j)
            if (total > 0) sum += weight[static_cast<std::size_t>(j)] / total * p.v.at(b, j, g, d);
          p.out.at(b, i, h, d) = sum;
          delta += sum * p.grad_out.at(b, i, h, d);
        }
        for (std::int64_t j = 0; j < s.keys && total > 0; ++j) {
          const double share = weight[static_cast<std::size_t>(j)] / total;
          double dot = 0;
          for (std::int64_t d = 0; d < s.v_depth; ++d) {
            dot += p.grad_out.at(b, i, h, d) * p.v.at(b, j, g, d);
            p.dv.at(b, j, g, d) += share * p.grad_out.at(b, i, h, d);
          }
          const double slope = share * (dot - delta) * p.scale;
          for (std::int64_t d = 0; d < s.depth; ++d) {
            p.dq.at(b, i, h, d) += slope * p.k.at(b, j, g, d);
            p.dk.at(b, j, g, d) += slope * p.q.at(b, i, h, d);
          }
        }
      }
    }
  }
}

/// A (B, N, H, D) view with gaps: every row of D elements is followed by `gap` canaries.
template <class S>
struct Buffer {
  static constexpr float canary = -77.0f;
  std::int64_t batch, n, heads, depth, gap;
  std::vector<S> data;
  Buffer(const Array& a, std::int64_t gap_, bool fill)
      : batch(a.batch),
        n(a.n),
        heads(a.heads),
        depth(a.depth),
        gap(gap_),
        data(static_cast<std::size_t>(batch * n * heads * (depth + gap)), S(canary)) {
    for (std::size_t i = 0; i < a.data.size(); ++i)
      element(i) = fill ? (std::is_same_v<S, double> ? S(a.data[i]) : S(static_cast<float>(a.data[i])))
                        : S(std::numeric_limits<float>::quiet_NaN());
  }
  S& element(std::size_t i) {
    const auto d = static_cast<std::size_t>(depth);
    return data[i / d * static_cast<std::size_t>(depth + gap) + i % d];
  }
  View view() {
    View v;
    v.data = data.data();
    v.dtype = dtype_of<S>;
    v.rank = 4;
    const std::int64_t row = depth + gap, shape[] = {batch, n, heads, depth};
    const std::int64_t strides[] = {n * heads * row, heads * row, row, 1};
    std::copy(shape, shape + 4, v.shape);
    std::copy(strides, strides + 4, v.strides);
    return v;
  }
  bool canaries_intact() const {
    for (std::size_t i = 0; i < data.size(); ++i)
      if (static_cast<std::int64_t>(i) % (depth + gap) >= depth && !(static_cast<float>(data[i]) == canary))
        return false;
    return true;
  }
};

template <class T>
View rows_view(std::vector<T>& data, const Shape& s) {
  View v;
  v.data = data.data();
  v.dtype = dtype_of<T>;
  v.rank = 3;
  const std::int64_t shape[] = {s.batch, s.q_heads, s.queries}, strides[] = {s.q_heads * s.queries, s.queries, 1};
  std::copy(shape, shape + 3, v.shape);
  std::copy(strides, strides + 3, v.strides);
  return v;
}

template <class S>
struct Result {
  using T = std::conditional_t<std::is_same_v<S, double>, double, float>;
  Buffer<S> out, dq, dk, dv;
  std::vector<T> lse;
};

template <class S>
Result<S> run(Problem& p, std::int64_t gap = 3, bool with_grad_lse = true) {
  using T = typename Result<S>::T;
  Buffer<S> q(p.q, gap, true), k(p.k, gap, true), v(p.v, gap, true), grad_out(p.grad_out, gap, true);
  Result<S> r{{p.out, gap, false}, {p.dq, gap, false}, {p.dk, gap, false}, {p.dv, gap, false}, {}};
  r.lse.resize(p.lse.size());
  std::vector<T> grad_lse(p.grad_lse.begin(), p.grad_lse.end());
  const View lse = rows_view(r.lse, p.shape);
  attention_forward({}, p.schedule, p.scale, q.view(), k.view(), v.view(), r.out.view(), lse);
  attention_backward({}, p.schedule, p.scale, q.view(), k.view(), v.view(), r.out.view(), lse, grad_out.view(),
                     with_grad_lse ? rows_view(grad_lse, p.shape) : View{}, r.dq.view(), r.dk.view(), r.dv.view());
  return r;
}

/// |actual - expected| <= tolerance * (largest expected + 1), element by element.
template <class S>
void expect_close(Buffer<S>& actual, const Array& expected, double tolerance, const std::string& what) {
  EXPECT_TRUE(actual.canaries_intact()) << what;
  double largest = 1;
  for (double x : expected.data) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const auto value = static_cast<double>(static_cast<typename Result<S>::T>(actual.element(i)));
    ASSERT_LE(std::abs(value - expected.data[i]), tolerance * largest)
        << what << " element " << i << ": " << value << " instead of " << expected.data[i];
  }
}

template <class S>
void expect_definition(const Shape& shape, const BandSchedule& schedule, double tolerance,
                       bool with_grad_lse = true) {
  SCOPED_TRACE(testing::Message() << "B " << shape.batch << " Nq " << shape.queries << " Nk " << shape.keys << " Hq "
                                  << shape.q_heads << " Hkv " << shape.kv_heads << " D " << shape.depth << " Dv "
                                  << shape.v_depth << " left " << schedule.left << " right " << schedule.right
                                  << " offset " << schedule.q_offset);
  Problem p(shape, schedule);
  randomize<S>(p, 5);
  if (!with_grad_lse) std::fill(p.grad_lse.begin(), p.grad_lse.end(), 0.0);
  evaluate(p);
  Result<S> r = run<S>(p, 3, with_grad_lse);
  expect_close(r.out, p.out, tolerance, "out");
  for (std::size_t i = 0; i < p.lse.size(); ++i) {
    if (p.lse[i] == -infinity) {
      ASSERT_EQ(static_cast<double>(r.lse[i]), -infinity) << i;
    } else {
      ASSERT_NEAR(static_cast<double>(r.lse[i]), p.lse[i], std::min(tolerance, 1e-5) * (1 + std::abs(p.lse[i]))) << i;
    }
  }
  expect_close(r.dq, p.dq, tolerance, "dq");
  expect_close(r.dk, p.dk, tolerance, "dk");
  expect_close(r.dv, p.dv, tolerance, "dv");
}

BandSchedule causal(std::int64_t offset = 0) { return {BandSchedule::unbounded, 0, offset}; }

const BandSchedule schedules[] = {
    {},  // dense
    causal(),
    causal(40),   // bottom-right, more keys than queries
    causal(-40),  // the first 40 queries see nothing
    {16, 0, 0},   // sliding window
    {5, 3, 0},
    {0, 0, 0},     // the diagonal
    {-10, 20, 0},  // a band that leaves out the diagonal
    {30, BandSchedule::unbounded, 7},
    {4, 4, 1000},  // nobody sees anything
};

TEST(AttentionKernel, FollowsTheDefinitionForEveryScheduleInDouble) {
  for (const BandSchedule& schedule : schedules)
    for (std::int64_t n : {1, 7, 61, 257}) expect_definition<double>({1, n, n, 2, 2, 8, 8}, schedule, 1e-12);
}

TEST(AttentionKernel, FollowsTheDefinitionForEveryScheduleInFloat) {
  for (const BandSchedule& schedule : schedules)
    for (std::int64_t n : {1, 7, 61, 257}) expect_definition<float>({2, n, n, 2, 1, 16, 16}, schedule, 1e-5);
}

TEST(AttentionKernel, TakesEveryHeadDimension) {
  for (std::int64_t depth : {1, 2, 8, 15, 16, 17, 31, 32, 33, 48, 64, 80, 128, 256}) {
    expect_definition<double>({1, 37, 37, 2, 2, depth, depth}, causal(), 1e-12);
    expect_definition<float>({1, 70, 70, 2, 2, depth, depth}, {}, 1e-5);
  }
}

TEST(AttentionKernel, ValuesMayHaveAnotherDepthThanKeys) {
  expect_definition<double>({2, 19, 23, 2, 2, 24, 5}, {}, 1e-12);
  expect_definition<double>({2, 19, 23, 2, 2, 5, 40}, causal(4), 1e-12);
}

TEST(AttentionKernel, QueriesAndKeysMayDifferInNumber) {
  for (const BandSchedule& schedule : schedules) {
    expect_definition<double>({1, 1, 300, 2, 2, 8, 8}, schedule, 1e-12);
    expect_definition<double>({1, 131, 17, 1, 1, 8, 8}, schedule, 1e-12);
    expect_definition<double>({1, 70, 129, 1, 1, 8, 8}, schedule, 1e-12);
  }
}

TEST(AttentionKernel, SharesKeysAmongTheHeadsOfAGroup) {
  expect_definition<double>({2, 61, 61, 6, 2, 8, 8}, causal(), 1e-12);
  expect_definition<double>({1, 61, 61, 4, 1, 8, 8}, {16, 0, 0}, 1e-12);
  expect_definition<float>({1, 140, 140, 8, 2, 32, 32}, causal(), 1e-5);
}

TEST(AttentionKernel, TheGradientOfLseIsOptional) {
  expect_definition<double>({1, 61, 61, 2, 2, 8, 8}, causal(), 1e-12, false);
}

TEST(AttentionKernel, HalfTypesComputeInFloat) {
  // One rounding of the results, and one of `out` on its way into delta.
  expect_definition<Half>({1, 130, 130, 2, 1, 33, 33}, causal(), 2e-3);
  expect_definition<BFloat16>({1, 130, 130, 2, 1, 64, 64}, causal(), 2e-2);
}

TEST(AttentionKernel, GradientsAgreeWithCentralDifferences) {
  Problem p({1, 9, 11, 2, 1, 4, 3}, {4, 2, 1});
  randomize<double>(p, 9);
  const Result<double> analytic = run<double>(p, 0);
  const auto objective = [&] {
    Result<double> r = run<double>(p, 0);
    double sum = 0;
    for (std::size_t i = 0; i < r.out.data.size(); ++i) sum += r.out.data[i] * p.grad_out.data[i];
    for (std::size_t i = 0; i < r.lse.size(); ++i)
      if (r.lse[i] != -infinity) sum += r.lse[i] * p.grad_lse[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double kept = x[i], step = 1e-6;
      x[i] = kept + step;
      const double above = objective();
      x[i] = kept - step;
      const double below = objective();
      x[i] = kept;
      ASSERT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8);
    }
  };
  check(p.q.data, analytic.dq.data);
  check(p.k.data, analytic.dk.data);
  check(p.v.data, analytic.dv.data);
}

TEST(AttentionKernel, ReadsAndWritesSlicesOfOnePackedProjection) {
  const Shape s{2, 45, 45, 3, 3, 16, 16};
  Problem p(s, causal());
  randomize<float>(p, 3);
  Result<float> apart = run<float>(p, 0);
  const std::int64_t width = s.q_heads * s.depth, row = 3 * width;
  std::vector<float> packed(static_cast<std::size_t>(s.batch * s.queries * row)), gradient(packed.size());
  const auto slice = [&](std::vector<float>& data, std::int64_t part) {
    View v;
    v.data = data.data() + part * width;
    v.rank = 4;
    const std::int64_t shape[] = {s.batch, s.queries, s.q_heads, s.depth},
                       strides[] = {s.queries * row, row, s.depth, 1};
    std::copy(shape, shape + 4, v.shape);
    std::copy(strides, strides + 4, v.strides);
    return v;
  };
  const Array* operands[] = {&p.q, &p.k, &p.v};
  for (std::int64_t part = 0; part < 3; ++part)
    for (std::size_t i = 0; i < p.q.data.size(); ++i)
      slice(packed, part)
          .as<float>()[static_cast<std::int64_t>(i) / width * row + static_cast<std::int64_t>(i) % width] =
          static_cast<float>(operands[part]->data[i]);
  Buffer<float> out(p.out, 0, false), grad_out(p.grad_out, 0, true);
  std::vector<float> lse(p.lse.size()), grad_lse(p.grad_lse.begin(), p.grad_lse.end());
  attention_forward({}, p.schedule, p.scale, slice(packed, 0), slice(packed, 1), slice(packed, 2), out.view(),
                    rows_view(lse, s));
  attention_backward({}, p.schedule, p.scale, slice(packed, 0), slice(packed, 1), slice(packed, 2), out.view(),
                     rows_view(lse, s), grad_out.view(), rows_view(grad_lse, s), slice(gradient, 0), slice(gradient, 1),
                     slice(gradient, 2));
  EXPECT_EQ(out.data, apart.out.data);
  const Buffer<float>* expected[] = {&apart.dq, &apart.dk, &apart.dv};
  for (std::int64_t part = 0; part < 3; ++part)
    for (std::size_t i = 0; i < p.q.data.size(); ++i)
      ASSERT_EQ(slice(gradient, part)
                    .as<float>()[static_cast<std::int64_t>(i) / width * row + static_cast<std::int64_t>(i) % width],
                expected[part]->data[i]);
}

/// Sets the number of threads until the end of the scope.
struct Threads {
  int before = num_threads();
  explicit Threads(int threads) { set_num_threads(threads); }
  ~Threads() { set_num_threads(before); }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(AttentionKernel, IsBitEqualForEveryNumberOfThreads) {
  // One head on several threads is cut into tiles, many heads are not: both ways must agree.
  for (std::int64_t heads : {1, 2, 6}) {
    for (const BandSchedule& schedule : {BandSchedule{}, causal(), BandSchedule{50, 20, 3}}) {
      Problem p({1, 333, 301, heads, heads == 6 ? 2 : 1, 40, 24}, schedule);
      randomize<float>(p, 1);
      std::vector<Result<float>> results;
      for (int threads : {1, 2, 2, 3}) {
        const Threads scope(threads);
        results.push_back(run<float>(p));
      }
      for (const Result<float>& r : results) {
        EXPECT_TRUE(same_bits(r.out.data, results[0].out.data));
        EXPECT_TRUE(same_bits(r.lse, results[0].lse));
        EXPECT_TRUE(same_bits(r.dq.data, results[0].dq.data));
        EXPECT_TRUE(same_bits(r.dk.data, results[0].dk.data));
        EXPECT_TRUE(same_bits(r.dv.data, results[0].dv.data));
      }
    }
  }
}

TEST(AttentionKernel, ConstantValuesGiveConstantOutput) {
  Problem p({1, 300, 300, 2, 2, 32, 32}, {100, 0, -20});
  randomize<float>(p, 2);
  std::fill(p.v.data.begin(), p.v.data.end(), 3.0);
  Result<float> r = run<float>(p, 0);
  for (std::int64_t i = 0; i < 300 * 2 * 32; ++i)
    ASSERT_NEAR(r.out.data[static_cast<std::size_t>(i)], i / 64 < 20 ? 0.0f : 3.0f, 3e-6f);
}

TEST(AttentionKernel, WhatIsNotAdmittedLeavesNoTrace) {
  // Keys and values that no query may see hold NaN; so does the gradient of the lse of a query that sees nothing.
  const std::int64_t n = 150;
  Problem p({1, n, n, 1, 1, 16, 16}, {BandSchedule::unbounded, -30, 0});
  randomize<float>(p, 8);
  for (std::int64_t j = n - 30; j < n; ++j)
    for (std::int64_t d = 0; d < 16; ++d) p.k.at(0, j, 0, d) = p.v.at(0, j, 0, d) = std::nan("");
  for (std::int64_t i = 0; i < 30; ++i) p.grad_lse[static_cast<std::size_t>(i)] = std::nan("");
  Result<float> r = run<float>(p, 0);
  for (const auto* values : {&r.out.data, &r.dq.data, &r.dk.data, &r.dv.data})
    for (float x : *values) ASSERT_TRUE(std::isfinite(x));
  for (std::int64_t i = 0; i < 30; ++i)
    EXPECT_EQ(r.lse[static_cast<std::size_t>(i)], -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < 30 * 16; ++i) {
    EXPECT_EQ(r.out.data[i], 0.0f);
    EXPECT_EQ(r.dq.data[i], 0.0f);
  }
  for (std::size_t i = (n - 30) * 16; i < n * 16; ++i) EXPECT_EQ(r.dk.data[i], 0.0f);
}

TEST(AttentionKernel, NaNInAnAdmittedKeyIsNotHidden) {
  Problem p({1, 40, 40, 1, 1, 8, 8}, causal());
  randomize<float>(p, 4);
  p.k.at(0, 20, 0, 3) = std::nan("");
  Result<float> r = run<float>(p, 0);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(r.out.data[i * 8]), i >= 20) << i;
}

TEST(AttentionKernel, LargeScoresNeitherOverflowNorVanish) {
  Problem p({1, 64, 64, 1, 1, 16, 16}, causal());
  randomize<double>(p, 6);
  for (double& x : p.q.data) x *= 300;
  evaluate(p);
  Result<double> r = run<double>(p);
  expect_close(r.out, p.out, 1e-10, "out");
  expect_close(r.dq, p.dq, 1e-10, "dq");
}

TEST(AttentionKernel, NoQueriesOrNoKeysIsNoError) {
  Problem no_keys({1, 5, 0, 1, 1, 8, 8}, {});
  randomize<float>(no_keys, 1);
  Result<float> r = run<float>(no_keys, 0);
  for (float x : r.out.data) EXPECT_EQ(x, 0.0f);
  for (float x : r.dq.data) EXPECT_EQ(x, 0.0f);
  Problem no_queries({1, 0, 5, 1, 1, 8, 8}, {});
  randomize<float>(no_queries, 1);
  Result<float> s = run<float>(no_queries, 0);
  for (float x : s.dk.data) EXPECT_EQ(x, 0.0f);
  for (float x : s.dv.data) EXPECT_EQ(x, 0.0f);
}

TEST(AttentionKernel, NeverHoldsAMatrixOfScores) {
  const std::int64_t n = 2048;
  Problem p({1, n, n, 1, 1, 16, 16}, causal());
  randomize<float>(p, 1);
  CachingAllocator& pool = allocator_for(cpu);
  const auto workspace = [&] {
    return pool.statistics().category_bytes[static_cast<std::size_t>(Category::workspace)];
  };
  pool.reset_peaks();
  const auto before = workspace();
  run<float>(p);
  const auto after = workspace();
  EXPECT_EQ(after.current, before.current);
  EXPECT_GT(after.peak, before.current);
  EXPECT_LT(after.peak - before.current, static_cast<std::uint64_t>(n * n) * sizeof(float) / 4);
}

TEST(AttentionKernel, OnASimulatedDeviceOnlyTimePassesAndDeltaIsRequested) {
  const Stream sim{{DeviceType::sim, 0}, 0};
  CachingAllocator& pool = allocator_for(sim.device);
  Problem p({2, 100, 100, 4, 2, 16, 16}, causal());
  Buffer<float> q(p.q, 0, true), k(p.k, 0, true), v(p.v, 0, true), out(p.out, 0, false);
  std::vector<float> rows(p.lse.size());
  const View lse = rows_view(rows, p.shape);
  const auto start = device_clock(sim.device);
  attention_forward(sim, p.schedule, p.scale, q.view(), k.view(), v.view(), out.view(), lse);
  const auto middle = device_clock(sim.device);
  EXPECT_GT(middle, start);
  EXPECT_TRUE(std::isnan(out.data[0]));
  const auto requested = pool.statistics().requested_bytes.allocated;
  attention_backward(sim, p.schedule, p.scale, q.view(), k.view(), v.view(), out.view(), lse, out.view(), {}, q.view(),
                     k.view(), v.view());
  EXPECT_GT(device_clock(sim.device), middle);
  EXPECT_EQ(pool.statistics().requested_bytes.allocated - requested, rows.size() * sizeof(float));
}

TEST(BandSchedule, CountsPairsLikeTheDefinition) {
  for (const BandSchedule& schedule : schedules) {
    Problem p({1, 61, 83, 1, 1, 1, 1}, schedule);
    double pairs = 0, transposed = 0;
    for (std::int64_t i = 0; i < 61; ++i)
      for (std::int64_t j = 0; j < 83; ++j) pairs += p.admitted(i, j);
    EXPECT_EQ(schedule.count_pairs(61, 83), pairs);
    transposed = schedule.transposed().count_pairs(83, 61);
    EXPECT_EQ(transposed, pairs);
  }
}

}  // namespace
}  // namespace poolgrad::kernels
