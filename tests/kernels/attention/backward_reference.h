// Gradients of attention by their definition, pair by pair in f64, and operands for the kernels under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/functors/attention_dropout.h"
#include "kernels/parallel.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels::testing {

/// (B, N, H, D) with a gap after each row of D elements. Nothing may write to the gaps.
class RowsArray {
 public:
  RowsArray(DType dtype, std::int64_t batch, std::int64_t n, std::int64_t heads, std::int64_t depth,
            std::int64_t gap = 3)
      : array_(dtype, {batch, n, heads, depth + gap}), view_(array_.view()), depth_(depth), gap_(gap) {
    view_.shape[3] = depth;
  }
  ~RowsArray() {
    for (std::int64_t i = 0; i < array_.count(); ++i)
      if (i % (depth_ + gap_) >= depth_ && !std::isnan(array_[i])) {
        ADD_FAILURE() << "wrote into the gap after a row, element " << i;
        return;
      }
  }
  RowsArray(const RowsArray&) = delete;
  RowsArray& operator=(const RowsArray&) = delete;

  const View& view() const { return view_; }
  std::int64_t count() const { return view_.count(); }
  double operator[](std::int64_t i) const { return array_[i / depth_ * (depth_ + gap_) + i % depth_]; }
  void set(std::int64_t i, double value) { array_.set(i / depth_ * (depth_ + gap_) + i % depth_, value); }
  const std::vector<std::uint8_t>& bytes() const { return array_.bytes(); }

 private:
  TestArray array_;
  View view_;
  std::int64_t depth_, gap_;
};

using Numbers = std::vector<double>;
/// Multiplicity of the key at position j for the query at position i in head h.
using Multiplicity = std::function<double(std::int64_t h, std::int64_t i, std::int64_t j)>;

/// Sizes, pattern and options of one call.
struct BackwardExample {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 2, depth = 8, v_depth = 8;
  AttentionSchedule schedule;
  Multiplicity multiplicity;
  double softcap = 0, dropout = 0, sharpness = 1;
  bool bias = false, alibi = false, sinks = false;
  bool magnitudes = false;  // computes BackwardCheck::magnitude
  bool dbias = false;       // requests the gradient of the bias, even without a bias
  std::int64_t gap = 3;     // elements between the rows of operands and of gradients
  /// Values of the bias and of the sinks; random if empty.
  std::function<double(std::int64_t h, std::int64_t i, std::int64_t j)> bias_of;
  Numbers sink_of;
  Numbers alone;  // positions of queries whose lse is forced to -infinity: they must have no gradient

  std::int64_t queries() const { return schedule.queries.count; }
  std::int64_t keys() const { return schedule.keys.count; }
  double scale() const { return sharpness * 1.3 / std::sqrt(std::max(1.0, static_cast<double>(depth))); }
};

/// -left <= j - i <= right, without overflow.
inline Multiplicity band(const AttentionSchedule& s) {
  return [left = s.left, right = s.right](std::int64_t, std::int64_t i, std::int64_t j) {
    const auto distance = static_cast<double>(j - i);
    return -static_cast<double>(left) <= distance && distance <= static_cast<double>(right) ? 1.0 : 0.0;
  };
}

/// -left <= j - i <= right. Without maps, the last query is at the position of the last key.
inline BackwardExample banded(PositionMap queries, PositionMap keys, std::int64_t left, std::int64_t right) {
  BackwardExample e;
  e.schedule.queries = queries;
  e.schedule.keys = keys;
  e.schedule.left = left;
  e.schedule.right = right;
  e.schedule.heads = e.q_heads;
  e.multiplicity = band(e.schedule);
  return e;
}
inline BackwardExample banded(std::int64_t queries, std::int64_t keys, std::int64_t left, std::int64_t right) {
  return banded(PositionMap::contiguous(queries, keys - queries), PositionMap::contiguous(keys), left, right);
}
inline BackwardExample causal(std::int64_t n) { return banded(n, n, unbounded, 0); }

/// Operands in `dtype`, with the gradients of these operands by the definition and by the kernel.
class BackwardCheck {
 public:
  struct Gradients {
    Numbers dq, dk, dv, dbias;
  };

  BackwardCheck(const BackwardExample& example, DType dtype, std::uint64_t seed = test_seed())
      : e(example),
        storage(dtype),
        compute(compute_dtype(dtype)),
        q(dtype, e.batch, e.queries(), e.q_heads, e.depth, e.gap),
        k(dtype, e.batch, e.keys(), e.kv_heads, e.depth, e.gap),
        v(dtype, e.batch, e.keys(), e.kv_heads, e.v_depth, e.gap),
        grad_out(dtype, e.batch, e.queries(), e.q_heads, e.v_depth, e.gap),
        grad_lse(compute, {e.batch, e.q_heads, e.queries()}),
        lse(compute, {e.batch, e.q_heads, e.queries()}, Layout::spread),
        delta(compute, {e.batch, e.q_heads, e.queries()}),
        bias(compute, {e.bias ? 1 : 0, e.q_heads, e.queries(), e.keys()}, Layout::transposed),
        alibi(compute, {e.q_heads}),
        sinks(compute, {e.q_heads}) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (RowsArray* x : {&q, &k, &v, &grad_out})
      for (std::int64_t i = 0; i < x->count(); ++i) x->set(i, normal(random));
    grad_lse.fill([&](std::int64_t) { return normal(random); });
    bias.fill([&](std::int64_t) { return normal(random); });
    alibi.fill([&](std::int64_t h) { return 0.05 * static_cast<double>(h + 1); });
    sinks.fill([&](std::int64_t) { return normal(random); });
    if (e.bias_of)
      bias.fill([&](std::int64_t n) {
        return e.bias_of(n / e.keys() / e.queries(), n / e.keys() % e.queries(), n % e.keys());
      });
    if (!e.sink_of.empty()) sinks.fill([&](std::int64_t h) { return e.sink_of[static_cast<std::size_t>(h)]; });
    scores.scale = e.scale();
    scores.softcap = e.softcap;
    scores.dropout = e.dropout;
    scores.dropout_key = {seed, 3, 5};
    if (e.bias) {  // one bias for the whole batch
      scores.bias = bias.view();
      scores.bias.shape[0] = e.batch;
      scores.bias.strides[0] = 0;
    }
    if (e.alibi) scores.alibi = alibi.view();
    if (e.sinks) scores.sinks = sinks.view();
    evaluate();
  }

  /// Gradients by the kernel, in `dtype`.
  struct Result {
    RowsArray dq, dk, dv;
    TestArray dbias;
    Result(const BackwardExample& e, DType type)
        : dq(type, e.batch, e.queries(), e.q_heads, e.depth, e.gap),
          dk(type, e.batch, e.keys(), e.kv_heads, e.depth, e.gap),
          dv(type, e.batch, e.keys(), e.kv_heads, e.v_depth, e.gap),
          dbias(compute_dtype(type), {e.dbias ? e.batch : 0, e.q_heads, e.queries(), e.keys()}, Layout::transposed) {}
    AttentionGradients views(bool accumulate = false) const {
      return {dq.view(), dk.view(), dv.view(), dbias.count() > 0 ? dbias.view() : View{}, accumulate};
    }
  };
  std::unique_ptr<Result> run() const {
    auto result = std::make_unique<Result>(e, storage);
    run(e.schedule, result->views());
    return result;
  }
  void run(const AttentionSchedule& schedule, const AttentionGradients& gradients) const {
    attention_backward({}, schedule, scores, q.view(), k.view(), v.view(), lse, delta, grad_out.view(), gradients);
  }

  /// |actual - expected| <= tolerance * (largest expected + 1) for each element.
  template <class Array>
  static void expect_close(const Array& actual, const Numbers& expected, double tolerance, const char* what) {
    ASSERT_EQ(actual.count(), static_cast<std::int64_t>(expected.size()));
    double largest = 1;
    for (double x : expected) largest = std::max(largest, std::abs(x));
    for (std::int64_t i = 0; i < actual.count(); ++i)
      ASSERT_TRUE(std::abs(actual[i] - expected[static_cast<std::size_t>(i)]) <= tolerance * largest)
          << what << " element " << i << ": " << actual[i] << " instead of " << expected[static_cast<std::size_t>(i)]
          << "; seed " << test_seed();
  }
  void expect(const Result& result, double tolerance) const {
    expect_close(result.dq, expected.dq, tolerance, "dq");
    expect_close(result.dk, expected.dk, tolerance, "dk");
    expect_close(result.dv, expected.dv, tolerance, "dv");
    if (e.dbias) expect_close(result.dbias, expected.dbias, tolerance, "dbias");
  }

  const BackwardExample e;
  const DType storage, compute;
  RowsArray q, k, v, grad_out;
  TestArray grad_lse, lse, delta, bias, alibi, sinks;
  AttentionScores scores;
  Gradients expected, magnitude;  // the sums, and the sums of the terms' magnitudes if requested
  Numbers out;                    // (B, Nq, Hq, Dv)

 private:
  static double dot(const double* x, const double* y, std::int64_t count) {
    double sum = 0;
    for (std::int64_t d = 0; d < count; ++d) sum += x[d] * y[d];
    return sum;
  }
  static void add(double* to, double factor, const double* x, std::int64_t count) {
    for (std::int64_t d = 0; d < count; ++d) to[d] += factor * x[d];
  }
  static Numbers read(const RowsArray& x) {
    Numbers values(static_cast<std::size_t>(x.count()));
    for (std::int64_t i = 0; i < x.count(); ++i) values[static_cast<std::size_t>(i)] = x[i];
    return values;
  }

  void evaluate() {
    const Numbers values[] = {read(q), read(k), read(v), read(grad_out)};
    expected = {Numbers(values[0].size()), Numbers(values[1].size()), Numbers(values[2].size()),
                Numbers(static_cast<std::size_t>(e.dbias ? e.batch * e.q_heads * e.queries() * e.keys() : 0))};
    out.assign(values[3].size(), 0.0);
    if (e.magnitudes) {
      magnitude = {Numbers(values[0].size()), Numbers(values[1].size()), Numbers(values[2].size()), {}};
      for (const Numbers& x : values) {
        Numbers& positive = magnitudes_.emplace_back(x);
        for (double& number : positive) number = std::abs(number);
      }
    }
    for (std::int64_t b = 0; b < e.batch; ++b)
      for (std::int64_t h = 0; h < e.q_heads; ++h)
        for (std::int64_t i = 0; i < e.queries(); ++i) evaluate_row(values, b, h, i);
  }

  void evaluate_row(const Numbers (&values)[4], std::int64_t b, std::int64_t h, std::int64_t i) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const std::int64_t g = h / (e.q_heads / e.kv_heads), row = (b * e.q_heads + h) * e.queries() + i;
    const std::int64_t query = (b * e.queries() + i) * e.q_heads + h, position = e.schedule.queries.position(i);
    const auto key = [&](std::size_t j) { return (b * e.keys() + static_cast<std::int64_t>(j)) * e.kv_heads + g; };
    const double *qi = values[0].data() + query * e.depth, *gi = values[3].data() + query * e.v_depth;
    const auto dropping = AttentionDropout::make(scores.dropout_key, e.dropout);
    const auto n = static_cast<std::size_t>(e.keys());
    Numbers weight(n), slope(n, 1.0), kept(n, 1.0), dweight(n);
    std::vector<bool> counts(n);
    double maximum = e.sinks ? sinks[h] : -infinity, total = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const std::int64_t at = e.schedule.keys.position(static_cast<std::int64_t>(j));
      const double multiplicity = e.multiplicity(h, position, at);
      counts[j] = multiplicity > 0;
      if (!counts[j]) continue;
      double score = e.scale() * dot(qi, values[1].data() + key(j) * e.depth, e.depth);
      if (e.softcap != 0) {
        const double t = std::tanh(score / e.softcap);
        slope[j] = 1 - t * t;
        score = e.softcap * t;
      }
      if (e.bias) score += bias[(h * e.queries() + i) * e.keys() + static_cast<std::int64_t>(j)];
      if (e.alibi) score -= alibi[h] * std::abs(static_cast<double>(position - at));
      if (e.dropout > 0) kept[j] = dropping.keeps(b, h, position, at) ? 1 / (1 - e.dropout) : 0.0;
      weight[j] = score + std::log(multiplicity);
      maximum = std::max(maximum, weight[j]);
    }
    for (std::size_t j = 0; j < n; ++j)
      if (counts[j]) total += weight[j] = std::exp(weight[j] - maximum);
    if (e.sinks) total += std::exp(sinks[h] - maximum);
    const bool none = total == 0 || std::find(e.alone.begin(), e.alone.end(), position) != e.alone.end();
    lse.set(row, none ? -infinity : maximum + std::log(total));
    double value = -grad_lse[row];
    for (std::size_t j = 0; j < n && !none; ++j) {
      if (!counts[j]) continue;
      weight[j] /= total;
      const double* vj = values[2].data() + key(j) * e.v_depth;
      dweight[j] = kept[j] * dot(gi, vj, e.v_depth);
      value += weight[j] * dweight[j];
      add(out.data() + query * e.v_depth, weight[j] * kept[j], vj, e.v_depth);
    }
    delta.set(row, value);
    for (std::size_t j = 0; j < n && !none; ++j) {
      if (!counts[j]) continue;
      const double ds = weight[j] * (dweight[j] - value), dx = ds * slope[j] * e.scale();
      if (e.dbias) expected.dbias[static_cast<std::size_t>(row) * n + j] = ds;
      add(expected.dv.data() + key(j) * e.v_depth, weight[j] * kept[j], gi, e.v_depth);
      add(expected.dq.data() + query * e.depth, dx, values[1].data() + key(j) * e.depth, e.depth);
      add(expected.dk.data() + key(j) * e.depth, dx, qi, e.depth);
      if (!e.magnitudes) continue;
      add(magnitude.dv.data() + key(j) * e.v_depth, weight[j] * kept[j], magnitudes_[3].data() + query * e.v_depth,
          e.v_depth);
      add(magnitude.dq.data() + query * e.depth, std::abs(dx), magnitudes_[1].data() + key(j) * e.depth, e.depth);
      add(magnitude.dk.data() + key(j) * e.depth, std::abs(dx), magnitudes_[0].data() + query * e.depth, e.depth);
    }
  }

  std::vector<Numbers> magnitudes_;  // of q, k, v, dO
};

/// Biases and sinks up to the largest f32. By query, in turn: one key has the largest bias and the others 0.9 of it;
/// one key has the largest and the others the lowest; earlier keys have the lowest and the others 0.
inline BackwardExample with_largest_biases(BackwardExample e) {
  constexpr double most = std::numeric_limits<float>::max();
  e.bias = e.sinks = e.dbias = true;
  for (std::int64_t h = 0; h < e.q_heads; ++h) e.sink_of.push_back(h % 2 == 0 ? -most : 0.95 * most);
  e.bias_of = [](std::int64_t, std::int64_t i, std::int64_t j) {
    const double of_query[] = {j == i / 2 ? most : 0.9 * most, j == i / 2 ? most : -most, j < i / 2 ? -most : 0.0};
    return of_query[i % 3];
  };
  return e;
}

/// No gradient overflows if all keys of a query have the same huge bias. The lse then has no bits left for the
/// products, and its last bit is uncertain because products may be summed in another order.
template <class Run>
void expect_no_overflow_of_huge_biases(BackwardExample e, DType dtype, const Run& run) {
  e.bias = true;
  e.sharpness = 1e3;
  for (const float bias : {-1e9f, -5e9f, 7e12f, -1e30f, 1e38f, std::numeric_limits<float>::lowest()}) {
    e.bias_of = [bias](std::int64_t, std::int64_t, std::int64_t) { return bias; };
    for (const bool lower : {false, true}) {
      BackwardCheck check(e, dtype);
      for (std::int64_t i = 0; i < check.lse.count() && lower; ++i)
        check.lse.set(i, std::nextafter(static_cast<float>(check.lse[i]), std::numeric_limits<float>::lowest()));
      const auto result = run(check);
      for (const RowsArray* gradient : {&result->dq, &result->dk, &result->dv})
        for (std::int64_t i = 0; i < gradient->count(); ++i)
          ASSERT_LE(std::abs((*gradient)[i]), 1e6) << bias << " element " << i << "; seed " << test_seed();
    }
  }
}

/// Compares the kernel with the definition in f64 and in f32.
inline void expect_definition(const BackwardExample& example, double in_f64 = 1e-12, double in_f32 = 2e-5) {
  SCOPED_TRACE(::testing::Message() << "B " << example.batch << " Nq " << example.queries() << " Nk " << example.keys()
                                    << " Hq " << example.q_heads << " Hkv " << example.kv_heads << " D "
                                    << example.depth << " Dv " << example.v_depth << " left " << example.schedule.left
                                    << " right " << example.schedule.right);
  const BackwardCheck wide(example, DType::f64), narrow(example, DType::f32);
  wide.expect(*wide.run(), in_f64);
  narrow.expect(*narrow.run(), in_f32);
}

inline void expect_same_bits(const BackwardCheck::Result& a, const BackwardCheck::Result& b, const std::string& where) {
  EXPECT_EQ(a.dq.bytes(), b.dq.bytes()) << where;
  EXPECT_EQ(a.dk.bytes(), b.dk.bytes()) << where;
  EXPECT_EQ(a.dv.bytes(), b.dv.bytes()) << where;
}

/// The gradients have the same bits on one thread and on each of these numbers of threads.
inline void expect_equal_bits(const BackwardCheck& check, std::initializer_list<int> several_threads) {
  const int before = num_threads();
  set_num_threads(1);
  const auto one = check.run();
  for (const int threads : several_threads) {
    set_num_threads(threads);
    expect_same_bits(*check.run(), *one, std::to_string(threads) + " threads");
  }
  set_num_threads(before);
}

}  // namespace poolgrad::kernels::testing
