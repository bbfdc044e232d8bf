// A forward attention call and its definition: a loop over pairs in f64, on the operands of the kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/functors/attention_dropout.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels::testing {

struct AttentionShape {
  std::int64_t batch = 1, queries = 1, keys = 1, q_heads = 1, kv_heads = 1, depth = 8, v_depth = 8;
};

/// Multiplicity of the key at position j for the query at position i in head h.
using Multiplicity = std::function<double(std::int64_t h, std::int64_t i, std::int64_t j)>;
inline double every_pair(std::int64_t, std::int64_t, std::int64_t) { return 1; }

struct ForwardProblem {
  AttentionShape shape;
  AttentionSchedule schedule;
  AttentionScores scores;
  Multiplicity multiplicity = every_pair;
  std::unique_ptr<TestArray> q, k, v, out, lse, bias, alibi, sinks;

  /// Dense attention with normal operands; positions of keys and queries start at 0.
  ForwardProblem(DType dtype, const AttentionShape& s, std::uint64_t seed = test_seed())
      : shape(s), random_(seed ^ static_cast<std::uint64_t>(s.queries * 1000003 + s.keys * 101 + s.depth)) {
    q = values(dtype, {s.batch, s.queries, s.q_heads, s.depth});
    k = values(dtype, {s.batch, s.keys, s.kv_heads, s.depth});
    v = values(dtype, {s.batch, s.keys, s.kv_heads, s.v_depth});
    out = std::make_unique<TestArray>(dtype, Shape{s.batch, s.queries, s.q_heads, s.v_depth});
    lse = std::make_unique<TestArray>(compute_dtype(), Shape{s.batch, s.q_heads, s.queries});
    schedule.queries = PositionMap::contiguous(s.queries);
    schedule.keys = PositionMap::contiguous(s.keys);
    schedule.heads = s.q_heads;
    scores.scale = 1 / std::sqrt(static_cast<double>(s.depth));
  }
  DType compute_dtype() const { return q->dtype() == DType::f64 ? DType::f64 : DType::f32; }
  std::unique_ptr<TestArray> values(DType dtype, const Shape& s, double scale = 1) {
    auto array = std::make_unique<TestArray>(dtype, s);
    std::normal_distribution<double> normal(0, scale);
    array->fill([&](std::int64_t) { return normal(random_); });
    return array;
  }
  ForwardProblem& causal(std::int64_t offset = 0) { return band(unbounded, 0, offset); }
  ForwardProblem& band(std::int64_t left, std::int64_t right, std::int64_t offset = 0) {
    schedule.left = left;
    schedule.right = right;
    schedule.queries = PositionMap::contiguous(shape.queries, offset);
    return counts([left, right](std::int64_t, std::int64_t i, std::int64_t j) {
      return (left == unbounded || j >= i - left) && (right == unbounded || j <= i + right) ? 1.0 : 0.0;
    });
  }
  /// Multiplies the multiplicity of each pair by `factor`.
  ForwardProblem& counts(const Multiplicity& factor) {
    multiplicity = [before = multiplicity, factor](std::int64_t h, std::int64_t i, std::int64_t j) {
      return before(h, i, j) * factor(h, i, j);
    };
    return *this;
  }
  /// Separate documents between these bounds. Positions beyond them belong to no document and see no key.
  ForwardProblem& with_documents(const std::vector<std::int64_t>& bounds) {
    bounds_ = bounds;
    schedule.documents = bounds_.data();
    schedule.document_count = static_cast<std::int32_t>(bounds.size()) - 1;
    const auto document = [bounds](std::int64_t x) {
      int found = -1;
      for (std::size_t n = 0; n + 1 < bounds.size(); ++n)
        if (bounds[n] <= x && x < bounds[n + 1]) found = static_cast<int>(n);
      return found;
    };
    return counts([document](std::int64_t, std::int64_t i, std::int64_t j) {
      return document(i) >= 0 && document(i) == document(j) ? 1.0 : 0.0;
    });
  }
  /// A random bias; dimensions of size 1 are broadcast.
  ForwardProblem& with_bias(const Shape& s, bool keys_adjacent = true) {
    bias = std::make_unique<TestArray>(compute_dtype(), s, keys_adjacent ? Layout::contiguous : Layout::transposed);
    std::normal_distribution<double> normal;
    bias->fill([&](std::int64_t) { return normal(random_); });
    scores.bias = bias->view();
    for (int d = 0; d < 4; ++d)
      if (s[static_cast<std::size_t>(d)] == 1) scores.bias.strides[d] = 0;
    const std::int64_t whole[] = {shape.batch, shape.q_heads, shape.queries, shape.keys};
    std::copy_n(whole, 4, scores.bias.shape);
    return *this;
  }
  /// Slopes of both signs, small enough that the f32 rounding of a bias stays below the tolerance.
  ForwardProblem& with_alibi() {
    alibi = values(compute_dtype(), {shape.q_heads}, std::min(0.1, 16.0 / static_cast<double>(shape.keys)));
    scores.alibi = *alibi;
    return *this;
  }
  ForwardProblem& with_sinks() {
    sinks = values(compute_dtype(), {shape.q_heads}, 2);
    scores.sinks = *sinks;
    return *this;
  }
  /// Biases up to the largest number. By query, in turn: all keys have the lowest; some have the largest and the others
  /// 0.9 of it; one has the largest and the others the lowest; half have the lowest and the others 0.
  ForwardProblem& with_largest_biases(bool and_sinks) {
    const double most =
        compute_dtype() == DType::f64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
    with_bias({1, shape.q_heads, shape.queries, shape.keys}).bias->fill([&](std::int64_t n) {
      const std::int64_t query = n / shape.keys, key = n % shape.keys;
      const double of_query[] = {-most, key % 3 == 0 ? most : 0.9 * most, key == shape.keys - 50 ? most : -most,
                                 key % 2 == 0 ? -most : 0.0};
      return of_query[(query + query / shape.queries) % 4];
    });
    if (and_sinks) with_sinks().sinks->fill([&](std::int64_t h) { return h % 2 == 0 ? -most : 0.95 * most; });
    return *this;
  }
  ForwardProblem& with_dropout(double p) {
    scores.dropout = p;
    scores.dropout_key = {11, 7, 5};
    return *this;
  }
  void run() { attention_forward(Stream{cpu}, schedule, scores, *q, *k, *v, *out, *lse); }

  struct Rows {
    std::vector<double> out, lse;  // in the order of the arrays
  };
  Rows definition() const;

 private:
  std::mt19937_64 random_;
  std::vector<std::int64_t> bounds_;
};

/// Documents of 1, 69, 0, 130 and 33 positions.
inline const std::vector<std::int64_t> uneven_documents = {0, 1, 70, 70, 200, 233};

inline ForwardProblem::Rows ForwardProblem::definition() const {
  const AttentionShape& s = shape;
  const auto dropout = AttentionDropout::make(scores.dropout_key, scores.dropout);
  const auto all = [](const TestArray& array) {
    std::vector<double> numbers(static_cast<std::size_t>(array.count()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = array[static_cast<std::int64_t>(i)];
    return numbers;
  };
  const auto bias_of = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const View& x = scores.bias;
    const std::int64_t at = b * x.strides[0] + h * x.strides[1] + i * x.strides[2] + j * x.strides[3];
    return x.dtype == DType::f64 ? x.as<double>()[at] : static_cast<double>(x.as<float>()[at]);
  };
  const std::vector<double> queries = all(*q), keys = all(*k), values = all(*v);
  Rows rows{all(*out), all(*lse)};
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.q_heads; ++h)
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const std::int64_t position = schedule.queries.position(i);
        const double* query = queries.data() + ((b * s.queries + i) * s.q_heads + h) * s.depth;
        const auto key_row = [&](std::int64_t j) {
          return (b * s.keys + j) * s.kv_heads + h / (s.q_heads / s.kv_heads);
        };
        struct Term {
          std::int64_t key;
          double score, count;
        };
        std::vector<Term> terms;
        double maximum = sinks ? (*sinks)[h] : -std::numeric_limits<double>::infinity();
        for (std::int64_t j = 0; j < s.keys; ++j) {
          const std::int64_t key = schedule.keys.position(j);
          const double count = multiplicity(scores.first_head + h, position, key);
          if (count == 0) continue;
          double x = 0;
          for (std::int64_t d = 0; d < s.depth; ++d)
            x += query[d] * keys[static_cast<std::size_t>(key_row(j) * s.depth + d)];
          x *= scores.scale;
          if (scores.softcap > 0) x = scores.softcap * std::tanh(x / scores.softcap);
          if (bias) x += bias_of(b, h, i, j);
          if (alibi) x -= (*alibi)[h] * std::abs(static_cast<double>(position - key));
          terms.push_back({j, x, count});
          maximum = std::max(maximum, x);
        }
        const double shift = std::isinf(maximum) ? 0 : maximum;
        double z = sinks ? std::exp((*sinks)[h] - shift) : 0;
        for (const Term& term : terms) z += term.count * std::exp(term.score - shift);
        rows.lse[static_cast<std::size_t>((b * s.q_heads + h) * s.queries + i)] = shift + std::log(z);
        double* result = rows.out.data() + ((b * s.queries + i) * s.q_heads + h) * s.v_depth;
        std::fill(result, result + s.v_depth, 0.0);
        for (const Term& term : terms) {
          double weight = z == 0 ? 0 : term.count * std::exp(term.score - shift) / z;
          if (scores.dropout > 0)
            weight *=
                dropout.keeps(scores.first_batch + b, scores.first_head + h, position, schedule.keys.position(term.key))
                    ? 1 / (1 - scores.dropout)
                    : 0;
          for (std::int64_t d = 0; d < s.v_depth; ++d)
            result[d] += weight * values[static_cast<std::size_t>(key_row(term.key) * s.v_depth + d)];
        }
      }
  return rows;
}

/// Compares with the tolerance of the dtype, relative plus absolute, because elements are sums of terms that cancel.
inline void expect_rows(const TestArray& out, const TestArray* lse, const ForwardProblem::Rows& expected) {
  const auto wanted = [](const std::vector<double>& rows) {
    return [&rows](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; };
  };
  const auto bound = [](DType dtype) {
    return dtype == DType::f64 ? 2e-13 : dtype == DType::f32 ? 1e-5 : tolerance(dtype);
  };
  expect_elements(out, wanted(expected.out), bound(out.dtype()), bound(out.dtype()));
  if (lse) expect_elements(*lse, wanted(expected.lse), bound(lse->dtype()), bound(lse->dtype()));
}
/// Runs the kernel and compares it with the definition.
inline void expect_definition(ForwardProblem& p, const std::string& what = "") {
  SCOPED_TRACE(what + " Nq " + std::to_string(p.shape.queries) + " Nk " + std::to_string(p.shape.keys) + " Hq " +
               std::to_string(p.shape.q_heads) + " D " + std::to_string(p.shape.depth) + " Dv " +
               std::to_string(p.shape.v_depth) + " " + std::string(to_string(p.q->dtype())));
  p.run();
  expect_rows(*p.out, p.lse.get(), p.definition());
}

}  // namespace poolgrad::kernels::testing
