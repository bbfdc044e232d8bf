// A row does not depend on rows that it does not see, even if they hold NaN or infinity. Holds for attend() on a CPU,
// on a device, in a ring, and by the definition for second derivatives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "autograd/operators.h"
#include "tests/attention/attend_support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention::testing_support {

/// Rows of one batch entry of length n, by head.
class Rows {
 public:
  Rows(std::int64_t n, std::int64_t heads) : n_(n), marked_(static_cast<std::size_t>(n * heads)) {}
  bool operator()(std::int64_t i, std::int64_t h) const { return marked_[static_cast<std::size_t>(h * n_ + i)]; }
  void mark(std::int64_t i, std::int64_t h) { marked_[static_cast<std::size_t>(h * n_ + i)] = true; }

 private:
  std::int64_t n_;
  std::vector<bool> marked_;
};

/// Poisoned rows, and the subset that holds a NaN. A NaN reaches every row that sees it; an infinity need not, because
/// kernels may skip pairs of score -infinity.
struct Poisoned {
  Rows bad, nan;
};

/// Puts a NaN or an infinity into some element of the row in head h of (1, N, H, D). Returns whether it is a NaN.
inline bool poison(Tensor& x, std::int64_t i, std::int64_t h, std::mt19937_64& random) {
  const double evil[] = {std::nan(""), infinity, -infinity};
  std::vector<double> values = x.to_vector<double>();
  const std::int64_t width = x.size(3), at = (i * x.size(2) + h) * width;
  const double chosen = evil[random() % 3];
  values[static_cast<std::size_t>(at) + random() % static_cast<std::size_t>(width)] = chosen;
  x = to(from_data(values, x.shape()), x.dtype());
  return std::isnan(chosen);
}

/// Compares the rows that are not `touched`. Rounding may differ, because a NaN may change the order in which the
/// kernel computes a tile. Elements differ by the error of f64 or f32 sums plus at most rounding(element).
template <class Rounding>
void expect_untouched(const Tensor& got, const Tensor& clean, const Rows& touched, const Rounding& rounding,
                      const std::string& what) {
  const std::vector<double> a = got.to_vector<double>(), b = clean.to_vector<double>();
  const std::int64_t heads = got.size(2), width = got.size(3);
  const double of_sums = got.dtype() == DType::f64 ? 1e-11 : 1e-4;
  for (std::int64_t row = 0; row < std::ssize(a) / width; ++row) {
    if (touched(row / heads, row % heads)) continue;
    for (std::int64_t d = 0; d < width; ++d) {
      const auto at = static_cast<std::size_t>(row * width + d);
      if (a[at] == b[at]) continue;  // includes -infinity, the lse of a query without keys
      const double error = std::abs(a[at] - b[at]);
      double allowed = of_sums * (1 + std::abs(b[at]));
      if (error > allowed) allowed += rounding(at);
      ASSERT_LE(error, allowed) << a[at] << " instead of " << b[at] << ": " << what << " row " << row / heads
                                << " head " << row % heads << "; seed " << test_seed();
    }
  }
}
/// Every `reached` row contains a number that is not finite.
inline void expect_reached(const Tensor& got, const Rows& reached, const std::string& what) {
  const std::vector<double> a = got.to_vector<double>();
  const std::int64_t heads = got.size(2), width = got.size(3);
  for (std::int64_t row = 0; row < std::ssize(a) / width; ++row) {
    if (!reached(row / heads, row % heads)) continue;
    const auto first = a.begin() + row * width;
    ASSERT_FALSE(std::all_of(first, first + width, [](double x) { return std::isfinite(x); }))
        << what << " row " << row / heads << " head " << row % heads << "; seed " << test_seed();
  }
}

/// A call with random poisoned rows of k, v, q and the gradient of out; half of the calls are also padded or biased.
class UnseenRows {
 public:
  using Run = std::function<Outcome(const Call&, const Pattern&)>;
  UnseenRows(
      const Case& one, const Sizes& sizes, DType dtype, std::mt19937_64& random,
      Run run = [](const Call& call, const Pattern& pattern) { return attended(call, pattern); },
      bool may_be_biased = true)
      : one_(one),
        sizes_(sizes),
        random_(random),
        run_(std::move(run)),
        clean_(rounded(make_call(sizes, DType::f64), dtype)) {
    what_ = one.name + " " + to_string(sizes) + " " + std::string(poolgrad::to_string(dtype));
    if (random() % 4 == 0) clean_.options.softcap = 3.0;
    if (random() % 3 == 0) pad();
    if (random() % 3 == 0 && may_be_biased) hide_pairs();
  }

  void expect_no_effect() {
    const Outcome clean = run_(clean_, one_.pattern);
    {
      Call call = clean_;
      const Poisoned keys = poisoned(call.k, 3), values = poisoned(call.v, 3);
      Rows touched(sizes_.queries, sizes_.heads), reached = touched, of_touched(sizes_.keys, sizes_.kv_heads);
      for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
        const std::int64_t g = h / group();
        if (keys.bad(j, g) || values.bad(j, g)) touched.mark(i, h);
        if (keys.nan(j, g) || (values.bad(j, g) && !keys.bad(j, g))) reached.mark(i, h);
      });
      for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
        if (touched(i, h)) of_touched.mark(j, h / group());
      });
      const Outcome got = run_(call, one_.pattern);
      expect_untouched_but(got, clean, touched, of_touched);
      expect_reached(got.out, reached, what_ + " out");
      expect_reached(got.dq, reached, what_ + " dq");
    }
    Call call = clean_;
    const Poisoned queries = poisoned(call.q, 2), gradients = poisoned(call.grad_out, 2);
    Rows bad = queries.bad, touched(sizes_.keys, sizes_.kv_heads), reached = touched;
    for (std::int64_t h = 0; h < sizes_.heads; ++h)
      for (std::int64_t i = 0; i < sizes_.queries; ++i)
        if (gradients.bad(i, h)) bad.mark(i, h);
    for_each_pair([&](std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::int64_t g = h / group();
      if (bad(i, h)) touched.mark(j, g);
      if (queries.nan(i, h) || (gradients.bad(i, h) && !queries.bad(i, h))) reached.mark(j, g);
    });
    const Outcome got = run_(call, one_.pattern);
    expect_untouched_but(got, clean, bad, touched);
    expect_reached(got.dk, reached, what_ + " dk");
    expect_reached(got.dv, reached, what_ + " dv");
  }

 private:
  /// (1, H, N) as (1, N, H, 1).
  static Tensor by_query(const Tensor& lse) { return unsqueeze(transpose(lse, 1, 2), -1); }
  /// All rows but these queries and keys are unchanged. The gradient of a bias belongs to query rows if each head has
  /// its own bias.
  void expect_untouched_but(const Outcome& got, const Outcome& clean, const Rows& queries, const Rows& keys) const {
    const auto exact = [](std::size_t) { return 0.0; };
    const auto rounding = [&](Tensor Outcome::*part) {
      return [this, part](std::size_t at) { return rounding_of_element(part, at); };
    };
    expect_untouched(got.out, clean.out, queries, rounding(&Outcome::out), what_ + " out");
    expect_untouched(by_query(got.lse), by_query(clean.lse), queries, exact, what_ + " lse");
    expect_untouched(got.dq, clean.dq, queries, rounding(&Outcome::dq), what_ + " dq");
    if (got.dbias.defined() && bias_heads_ == sizes_.heads) {
      const std::vector<double> by_row = by_delta(got, clean);
      expect_untouched(
          transpose(got.dbias, 1, 2), transpose(clean.dbias, 1, 2), queries,
          [&](std::size_t at) { return by_row[at / static_cast<std::size_t>(sizes_.keys)]; }, what_ + " dbias");
    }
    expect_untouched(got.dk, clean.dk, keys, rounding(&Outcome::dk), what_ + " dk");
    expect_untouched(got.dv, clean.dv, keys, rounding(&Outcome::dv), what_ + " dv");
  }
  /// The gradient of a score is P (dP - delta) in f32, and delta = <dO, out> uses `out` as stored in 16 bits. Returns
  /// the difference of delta (N, H), which P <= 1 scales.
  std::vector<double> by_delta(const Outcome& got, const Outcome& clean) const {
    const auto wide = [](const Tensor& x) { return to(x, DType::f64); };
    return abs(sum(wide(clean_.grad_out) * (wide(got.out) - wide(clean.out)), {3})).to_vector<double>();
  }
  /// Allowed difference of two 16-bit results: each lies within the rounding of the definition.
  double rounding_of_element(Tensor Outcome::*part, std::size_t at) const {
    const DType dtype = clean_.q.dtype();
    if (dtype != DType::f16 && dtype != DType::bf16) return 0;
    if (!rounding_.out.defined()) rounding_ = rounding_of(clean_, one_.m, dtype);
    return 2 * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11) * (rounding_.*part).to_vector<double>()[at];
  }
  std::int64_t group() const { return sizes_.heads / sizes_.kv_heads; }
  /// Pads a third of the keys, and all keys from a random position on.
  void pad() {
    const std::int64_t end = sizes_.keys - static_cast<std::int64_t>(random_() % 3) * sizes_.keys / 4;
    std::vector<double> padding;
    for (std::int64_t j = 0; j < sizes_.keys; ++j) padding.push_back(j >= end || random_() % 3 == 0);
    padded_ = padding;
    clean_.options.key_padding = to(from_data(padding, {1, sizes_.keys}), DType::boolean);
    what_ += " padded";
  }
  /// Hides an eighth of the pairs by a bias of -infinity, in all heads alike or in each head separately.
  void hide_pairs() {
    bias_heads_ = random_() % 2 ? 1 : sizes_.heads;
    std::normal_distribution<double> normal;
    for (std::int64_t n = 0; n < bias_heads_ * sizes_.queries * sizes_.keys; ++n)
      bias_.push_back(random_() % 8 == 0 ? -infinity : normal(random_));
    clean_.options.bias = to(from_data(bias_, {1, bias_heads_, sizes_.queries, sizes_.keys}), clean_.grad_lse.dtype());
    what_ += " biased";
  }
  bool hidden(std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!padded_.empty() && padded_[static_cast<std::size_t>(j)] != 0) return true;
    if (bias_.empty()) return false;
    return std::isinf(bias_[static_cast<std::size_t>((h % bias_heads_ * sizes_.queries + i) * sizes_.keys + j)]);
  }
  /// Poisons up to `count` random rows; a row may be drawn twice.
  Poisoned poisoned(Tensor& x, int count) {
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
    };
    Poisoned rows{{x.size(1), x.size(2)}, {x.size(1), x.size(2)}};
    for (int n = 0; n < count; ++n) {
      // Half of the rows are the first or the last, where tiles are partly visible.
      const std::int64_t i = random_() % 2 ? below(x.size(1)) : random_() % 2 ? x.size(1) - 1 : 0, h = below(x.size(2));
      if (rows.bad(i, h)) continue;
      rows.bad.mark(i, h);
      if (poison(x, i, h, random_)) rows.nan.mark(i, h);
    }
    return rows;
  }
  template <class F>
  void for_each_pair(const F& f) const {
    for (std::int64_t h = 0; h < sizes_.heads; ++h)
      for (std::int64_t i = 0; i < sizes_.queries; ++i)
        for (std::int64_t j = 0; j < sizes_.keys; ++j)
          if (!hidden(h, i, j) && one_.m(h, sizes_.heads, i + sizes_.keys - sizes_.queries, j) > 0) f(h, i, j);
  }

  const Case& one_;
  const Sizes sizes_;
  std::mt19937_64& random_;
  const Run run_;
  Call clean_;
  mutable Outcome rounding_;  // computed on first use
  std::string what_;
  std::vector<double> padded_, bias_;
  std::int64_t bias_heads_ = 1;
};

}  // namespace poolgrad::attention::testing_support
